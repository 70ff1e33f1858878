"""Judgements of samples: their order, their batches, and the processes that load them."""
