"""Judgements of several processes of one run, from what each of them tells of itself."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.ranks import replicas as replicas  # isort: skip
from trainguard.invariants.ranks import sharded as sharded  # isort: skip
from trainguard.invariants.ranks import optimizers as optimizers  # isort: skip
from trainguard.invariants.ranks import decisions as decisions  # isort: skip
from trainguard.invariants.ranks import collectives as collectives  # isort: skip
from trainguard.invariants.ranks import reductions as reductions  # isort: skip
from trainguard.invariants.ranks import data as data  # isort: skip
from trainguard.invariants.ranks import splits as splits  # isort: skip
from trainguard.invariants.ranks import worlds as worlds  # isort: skip
from trainguard.invariants.ranks import pace as pace  # isort: skip
from trainguard.invariants.ranks import files as files  # isort: skip
