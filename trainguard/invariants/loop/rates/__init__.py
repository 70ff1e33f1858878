"""Judgements of learning rates, and of the schedules that they follow."""
