"""
Judgements of the log of a run that is over: what only a log can show, and what it can be sure of.

Broken is what a log alone makes certain; all else are notes. What a recorded run is judged by too
(loss_is_finite, loss_falls, the rates, the validation loss) is judged by the same functions of
`loop`, those that are marked with `logs=True`.
"""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.log import counting as counting  # isort: skip
from trainguard.invariants.log import resuming as resuming  # isort: skip
from trainguard.invariants.log import losses as losses  # isort: skip
from trainguard.invariants.log import rates as rates  # isort: skip
from trainguard.invariants.log import norms as norms  # isort: skip
from trainguard.invariants.log import evaluations as evaluations  # isort: skip
from trainguard.invariants.log import speed as speed  # isort: skip
from trainguard.invariants.log import memory as memory  # isort: skip
