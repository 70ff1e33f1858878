"""Judgements of the size of a learning rate, by what the same steps would learn at another one."""

from collections.abc import Iterator
from math import isfinite, nan
from statistics import fmean

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, number
from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_answer
from trainguard.invariants.loop.losses.causes import find_summed_losses, name_rate
from trainguard.invariants.loop.models.counterfactuals import answers_to
from trainguard.invariants.loop.wording import count, courses, events, in_line

_LOW, _HIGH = (0.01, 0.1), (10.0, 100.0)  # times the run's own rate
# Of the loss without any step, by which another rate lowers it: a fifth is more than what batches
# differ by, and 112 healthy trainings come further than half of what a lower rate gains. Of what a
# higher one gains the 75 with something to gain come to 0.28 at least; one came to a tenth at a
# hundredth of its rate.
_FAR, _HALF = 0.2, 0.5
_MOST, _LITTLE = 0.3, 0.15
_ENOUGH = 100  # steps: a run of fewer, as one that only tries a script out, may have to go on


@invariant(
    "loop",
    evidence=has_answer("other rates", "no optimizer alone took early steps on a loss of torch"),
)
def rate_has_the_right_size(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No rate that is ten or a hundred times as low, or as high, learns far more in the same steps.

    Judges: up to sixty steps that forked children made with the batches of the run, without
        learning, at its own rates, and at 0.01, 0.1, 10 and 100 times these. Too high is a rate if
        a lower one gains at least 0.2 of the loss without learning in these steps, and the run's
        own not half as much, in them or up to its end. Too low is it if a higher one gains at
        least 0.3, and the run's own less than 0.15 of that; where the run was cut off, that is a
        note.
    Allows: whatever takes half of the loss away in these steps; a rate that is too low in a run of
        fewer than 100 steps, or one that is over in its warm-up.
    Misses: losses that are no function of torch; targets, or inputs, that follow from what was
        learned (reinforcement, discriminators, teachers); rates of one optimizer of several.
    Why: a rate with a zero too many trains, and logs a loss that falls: it ends where a rate of
        the usual size is after a few steps.
    Source: Smith, Cyclical Learning Rates for Training Neural Networks (arXiv 1506.01186), section
        3.3; Karpathy, A Recipe for Training Neural Networks, 2019.
    """
    for answer in answers_to(trace, "other rates"):
        if len(answer.numbers) <= len(_LOW + _HIGH) or not answer.reference > 0:
            continue
        gains = [_gain(answer, loss) for loss in answer.numbers[1:]]
        own = max(_gain(answer, answer.measured), _gain(answer, _last_loss(trace)))
        low, high = max(gains[:2]), max(gains[2:])
        if low >= _FAR and own < _HALF * low:
            rate = _LOW[gains.index(low)]
            yield _tell(trace, answer, rate, "high" + find_summed_losses(trace), Rank.BROKEN)
        elif high >= _MOST and own < _LITTLE * high and _is_long(trace):
            rate = _HIGH[gains.index(high) - 2]
            rank = Rank.NOTE if trace.conditions.get("ended") == "stopped" else Rank.BROKEN
            yield _tell(trace, answer, rate, "low" + _of_epsilon(trace), rank)


def _gain(answer: WhatIf, loss: float) -> float:
    """Return what share of the loss without learning is gone."""
    return (answer.reference - loss) / answer.reference if isfinite(loss) else -1.0


def _last_loss(trace: Trace[Event]) -> float:
    """Return the mean loss of the last fifth of the steps of the optimizer that stepped first."""
    losses = [step.loss for step in _first_steps(trace) if isfinite(step.loss)]
    return fmean(losses[-max(1, len(losses) // 5) :]) if losses else nan


def _is_long(trace: Trace[Event]) -> bool:
    """Say whether a run had time to learn: many steps, and not all of them in a warm-up."""
    steps = _first_steps(trace)
    rates = [max(step.rates) for step in steps if step.rates]
    rises = bool(rates) and rates[-1] > rates[len(rates) // 2]
    return count(steps) >= _ENOUGH and not rises


def _first_steps(trace: Trace[Event]) -> tuple[Step, ...]:
    """Return the steps of the optimizer that stepped first, which the question was about."""
    every = courses(trace)
    return every[0].every if every else ()


def _tell(trace: Trace[Event], answer: WhatIf, rate: float, size: str, rank: Rank) -> Finding:
    """Return the finding: at what rate more is learned."""
    steps, *losses = answer.numbers
    other = losses[(_LOW + _HIGH).index(rate)]
    end = _last_loss(trace)
    return Finding(
        f"steps at {number(rate, 'times')} the rate learn far more than those of `{trace.subject}`",
        at_step(answer.step) + f", in {steps:.0f} steps with the same batches",
        number(answer.measured)
        + f" is the loss then, and {number(end)} at the end of the run; without any step it would"
        f" be {number(answer.reference)}",
        number(other) + f" at {number(rate, 'times')} the rate, or not far above it",
        why=f"{name_rate(trace)} is too {size}",
        rank=rank,
        event=answer,
    )


def _of_epsilon(trace: Trace[Event]) -> str:
    """Tell of an epsilon by which steps are divided."""
    for probe in events(trace, Probe):
        if probe.probe == "epsilon" and probe.measured > _HALF:
            return f", or its epsilon, {number(probe.reference)}, too high{in_line(probe.source)}"
    return ""
