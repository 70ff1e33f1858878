"""Judgements of losses: their course, their values, their terms, and what chance reaches."""
