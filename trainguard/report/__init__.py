"""Findings and verdicts in words. No other folder lays out text for a person to read."""
