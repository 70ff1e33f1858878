"""Samples, whatever serves them: batches, their order, their labels, and who sees them."""
