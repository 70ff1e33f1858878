"""Judgements of evaluations, and of what adds up over them."""
