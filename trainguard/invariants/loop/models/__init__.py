"""Judgements of calls of models: their modes, and what was tried on copies or in another step."""
