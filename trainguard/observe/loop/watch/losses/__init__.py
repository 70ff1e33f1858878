"""Losses: what is handed to backward, and what loss functions are given."""
