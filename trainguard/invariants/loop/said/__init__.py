"""Judgements of what a script says of itself."""
