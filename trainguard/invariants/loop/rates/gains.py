"""What steps have gained of their loss, at the run's own rates and at others."""

from collections.abc import Iterator
from math import isfinite, nan
from statistics import fmean
from typing import NamedTuple

from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop.models.counterfactuals import answers_to
from trainguard.invariants.loop.wording import courses

LOW, HIGH = (0.01, 0.1), (10.0, 100.0)  # times the run's own rate
# Of the loss without any step, by which another rate lowers it: a fifth is more than what batches
# differ by, and 112 healthy trainings come further than half of what a lower rate gains. Of what a
# higher one gains the 75 with something to gain come to 0.28 at least; one came to a tenth at a
# hundredth of its rate.
FAR, HALF = 0.2, 0.5
MOST, LITTLE = 0.3, 0.15


class Gains(NamedTuple):
    """
    What an answer says: shares of the loss without learning that are gone after the same steps.

    own: at the run's rates, in these steps or up to its end; low, high: at a hundredth and a tenth,
    and at ten and a hundred times them; epsilon: at the run's rates with an epsilon of 1e-8, not
    above 0 where none was larger; end: the loss at the end of the run.
    """

    answer: WhatIf
    own: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    epsilon: float
    end: float

    def of_epsilon(self) -> bool:
        """Say whether a large epsilon keeps the run from learning."""
        return self.epsilon >= FAR and self.own < HALF * self.epsilon


def find_gains(trace: Trace[Event]) -> Iterator[Gains]:
    """Yield what each answer says that has tried other rates."""
    for answer in answers_to(trace, "other rates"):
        if len(answer.numbers) > len(LOW + HIGH) and answer.reference > 0:
            low, high, others = answer.numbers[1:3], answer.numbers[3:5], answer.numbers[5:]
            end = _last_loss(trace)
            yield Gains(
                answer,
                max(_gain(answer, answer.measured), _gain(answer, end)),
                tuple(_gain(answer, loss) for loss in low),
                tuple(_gain(answer, loss) for loss in high),
                max((_gain(answer, loss) for loss in others), default=-1.0),
                end,
            )


def first_steps(trace: Trace[Event]) -> tuple[Step, ...]:
    """Return the steps of the optimizer that stepped first, which the question was about."""
    every = courses(trace)
    return every[0].every if every else ()


def _gain(answer: WhatIf, loss: float) -> float:
    """Return what share of the loss without learning is gone."""
    return (answer.reference - loss) / answer.reference if isfinite(loss) else -1.0


def _last_loss(trace: Trace[Event]) -> float:
    """Return the mean loss of the last fifth of the steps of the optimizer that stepped first."""
    losses = [step.loss for step in first_steps(trace) if isfinite(step.loss)]
    return fmean(losses[-max(1, len(losses) // 5) :]) if losses else nan
