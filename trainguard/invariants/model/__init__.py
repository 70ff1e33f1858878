"""Judgements of a model before it is trained: its outputs, gradients, state and variants."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.model import initial as initial  # isort: skip
from trainguard.invariants.model import gradients as gradients  # isort: skip
from trainguard.invariants.model import isolation as isolation  # isort: skip
from trainguard.invariants.model import evaluation as evaluation  # isort: skip
from trainguard.invariants.model import state as state  # isort: skip
from trainguard.invariants.model import variants as variants  # isort: skip
from trainguard.invariants.model import lengths as lengths  # isort: skip
