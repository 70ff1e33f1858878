"""Judgements of gradients: finite, fresh, clipped as they say, spent, and spread."""
