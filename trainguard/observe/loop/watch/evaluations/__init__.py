"""Evaluations: what they predict, how right it is, and what their meters add up."""
