"""Judgements of a loss, from what its probes measured; thresholds are in `Allows`."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.loss import sweep as sweep  # isort: skip
from trainguard.invariants.loss import slope as slope  # isort: skip
from trainguard.invariants.loss import precision as precision  # isort: skip
from trainguard.invariants.loss import batch as batch  # isort: skip
from trainguard.invariants.loss import conduct as conduct  # isort: skip
