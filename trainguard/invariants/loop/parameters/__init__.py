"""Judgements of parameters: moved, held, averaged, loaded."""
