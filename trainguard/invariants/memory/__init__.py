"""Judgements of the memory that a training step takes, against the budget that was declared."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.memory import peak as peak  # isort: skip
from trainguard.invariants.memory import growth as growth  # isort: skip
from trainguard.invariants.memory import device as device  # isort: skip
