"""Judgements of checkpoints: what they restore, how they are written, kept and read."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.checkpoint import resume as resume  # isort: skip
from trainguard.invariants.checkpoint import complete as complete  # isort: skip
from trainguard.invariants.checkpoint import files as files  # isort: skip
