"""Judgements of what loaders serve: which samples, in which order, split, shape and range."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.loader import lengths as lengths  # isort: skip
from trainguard.invariants.loader import coverage as coverage  # isort: skip
from trainguard.invariants.loader import batches as batches  # isort: skip
from trainguard.invariants.loader import order as order  # isort: skip
from trainguard.invariants.loader import values as values  # isort: skip
from trainguard.invariants.loader import workers as workers  # isort: skip
from trainguard.invariants.loader import transform as transform  # isort: skip
from trainguard.invariants.loader import resume as resume  # isort: skip
from trainguard.invariants.loader import settings as settings  # isort: skip
from trainguard.invariants.loader import storage as storage  # isort: skip
