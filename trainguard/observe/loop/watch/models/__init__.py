"""Calls of models: their modes, and what is tried on copies of them."""
