"""Judgements of the run as a whole: its curves, and what it keeps."""
