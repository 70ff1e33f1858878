"""Judgements of the size of a learning rate, by what the same steps would learn at another one."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, number
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_answer
from trainguard.invariants.loop.losses.causes import find_summed_losses, name_rate
from trainguard.invariants.loop.rates.gains import (
    FAR,
    HALF,
    HIGH,
    LITTLE,
    LOW,
    MOST,
    Gains,
    find_gains,
    first_steps,
)
from trainguard.invariants.loop.wording import (
    LEFT_OVER,
    count,
    courses,
    events,
    in_line,
    stale_steps,
)

_ENOUGH = 100  # steps: a run of fewer, as one that only tries a script out, may have to go on
_NOTHING = 0.05  # of what a higher rate gains, in such a run: for a note


@invariant(
    "loop",
    evidence=has_answer("other rates", "no early steps could be made again"),
)
def rate_has_the_right_size(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No learning rate 10 or 100 times lower or higher learns far more in the same steps.

    Judges: up to sixty steps that forked children made with the batches of the run, without
        learning, at its own rates, and at 0.01, 0.1, 10 and 100 times these. Too high is a rate if
        a lower one gains at least 0.2 of the loss without learning in these steps, and the run's
        own not half as much, in them or up to its end. Too low is it if a higher one gains at
        least 0.3, and the run's own less than 0.15 of that; where the run was cut off, that is a
        note, and so it is below 0.05 in a run of fewer than 100 steps that has one stage.
    Allows: whatever takes half of the loss away in these steps; a rate that is too low in a run
        that is over in its warm-up; steps with gradients that were used before, which pile up.
    Misses: targets, or inputs, that follow from what was learned (reinforcement, discriminators,
        teachers); losses below zero; rates of one optimizer of several.
    Why: a rate with a zero too many trains, and logs a loss that falls: it ends where a rate of
        the usual size is after a few steps.
    Source: Smith, Cyclical Learning Rates for Training Neural Networks (arXiv 1506.01186), section
        3.3; Karpathy, A Recipe for Training Neural Networks, 2019.
    """
    if any(stale_steps(course, LEFT_OVER) for course in courses(trace)):
        return
    for gains in find_gains(trace):
        low, high = max(gains.low), max(gains.high)
        if low >= FAR and gains.own < HALF * low:
            rate, why = LOW[gains.low.index(low)], "high" + find_summed_losses(trace)
            yield _tell(trace, gains, rate, why, Rank.BROKEN)
        elif high >= MOST and gains.own < _share(trace) * high:
            rate, epsilon = HIGH[gains.high.index(high)], _of_epsilon(trace)
            if epsilon and gains.of_epsilon():
                continue  # another judgement tells of it
            why = "low" + epsilon
            yield _tell(trace, gains, rate, why, _rank_of(trace))


def _share(trace: Trace[Event]) -> float:
    """Return below what share of what a higher rate gains the run's own is too low."""
    if _warms_up(first_steps(trace)):
        return 0.0
    if _is_long(trace):
        return LITTLE
    return _NOTHING if len(courses(trace)) == 1 else 0.0


def _rank_of(trace: Trace[Event]) -> Rank:
    """Return what becomes of a low rate: the run must have had time to learn, and not go on."""
    is_whole = trace.conditions.get("ended") != "stopped"
    return Rank.BROKEN if is_whole and _is_long(trace) else Rank.NOTE


def _is_long(trace: Trace[Event]) -> bool:
    """Say whether a run had time to learn."""
    return count(first_steps(trace)) >= _ENOUGH


def _warms_up(steps: tuple[Step, ...]) -> bool:
    """Say whether rates have risen to the end."""
    rates = [max(step.rates) for step in steps if step.rates]
    return bool(rates) and rates[-1] > rates[len(rates) // 2]


def _tell(trace: Trace[Event], gains: Gains, rate: float, size: str, rank: Rank) -> Finding:
    """Return the finding: at what rate more is learned."""
    answer = gains.answer
    steps, *losses = answer.numbers
    other = losses[(LOW + HIGH).index(rate)]
    return Finding(
        f"steps at {number(rate, 'times')} the rate learn far more than those of `{trace.subject}`",
        at_step(answer.step) + f", in {steps:.0f} steps with the same batches",
        number(answer.measured)
        + f" is the loss then, and {number(gains.end)} at the end of the run; without any step it"
        f" would be {number(answer.reference)}",
        number(other) + f" at {number(rate, 'times')} the rate, or not far above it",
        why=f"{name_rate(trace)} is too {size}",
        rank=rank,
        event=answer,
    )


def _of_epsilon(trace: Trace[Event]) -> str:
    """Tell of an epsilon by which steps are divided."""
    for probe in events(trace, Probe):
        if probe.probe == "epsilon" and probe.measured > HALF:
            return f", or its epsilon, {number(probe.reference)}, too high{in_line(probe.source)}"
    return ""
