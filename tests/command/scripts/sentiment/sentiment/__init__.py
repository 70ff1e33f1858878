"""Tells kind sentences from unkind ones."""
