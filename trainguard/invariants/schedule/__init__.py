"""Judgements of a learning-rate schedule, from the rates that were in force."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.schedule import rate as rate  # isort: skip
from trainguard.invariants.schedule import warmup as warmup  # isort: skip
from trainguard.invariants.schedule import decay as decay  # isort: skip
from trainguard.invariants.schedule import state as state  # isort: skip
from trainguard.invariants.schedule import plateau as plateau  # isort: skip
