"""Judgements of the learning rates that steps are made with."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite, log

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.loop import Scheduler, Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import RATES, SCHEDULES
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    in_line,
    most_of,
    tally,
)
from trainguard.invariants.wording import number

_ROUNDING = 1e-6
_FEW = 5
_IDLE = 20
_SPENT = 1e-3  # of the highest rate: usual schedules are below it in the last few steps only
_DEAD = 1e-5  # of the highest rate: what moves nothing in any usual precision
_LEAPS = 3  # rates between: fewer are set on purpose, as for fine-tuning
_EACH = 0.9  # of the steps: a scheduler that is advanced so often is advanced in each
_SEVERAL = 2  # epochs


@invariant("loop", evidence=RATES, logs=True, live=SOON)
def learning_rate_is_positive(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Steps are made with a learning rate above zero.

    Judges: the rate of each parameter group in each step; zero where all groups are at it though
        there were gradients.
    Allows: zero in half of the steps, as at the ends of a schedule, or in a single step; in fewer
        than 5 steps it must be all of them. Groups at zero beside others that learn. A note where
        another optimizer learns meanwhile.
    Misses: rates that are above zero and far too small; runs without gradients.
    Why: a schedule that is switched off leaves the optimizer at the start of its warmup, which
        is often zero: everything runs and nothing moves. A negative rate climbs.
    Source: EleutherAI/gpt-neox issue 1373; facebookresearch/barlowtwins issue 45.
    """
    every = courses(trace)
    for course in every:
        yield from _negative(trace, course)
        judged = [s for s in course.steps if s.rates and (s.norm > 0 or s.received)]
        still = [s for s in judged if not any(s.rates)]
        enough = count(judged) >= (_FEW if len(still) < len(judged) else 2)
        if not most_of(still, judged) or not enough or any(s.update > 0 for s in still):
            continue
        others = any(o is not course and any(any(s.rates) for s in o.steps) for o in every)
        yield Finding(
            f"the learning rate of `{trace.subject}` is zero",
            course.at(still[0]),
            integer(0) + f" in {tally(still, judged)}",
            "above " + integer(0),
            why="the schedule may be switched off, or never advanced, or driven past its end",
            rank=Rank.NOTE if others else Rank.BROKEN,
            event=still[0],
        )


def _negative(trace: Trace[Event], course: Course) -> Iterator[Finding]:
    """Yield a finding for the first step with a rate below zero."""
    below = [step for step in course.steps if any(rate < 0 for rate in step.rates)]
    if below:
        yield Finding(
            f"the learning rate of `{trace.subject}` is negative",
            course.at(below[0]),
            number(min(below[0].rates)) + f" in {tally(below, course.steps)}",
            "above " + integer(0),
            why="a schedule that falls along a line may be driven past its end",
            event=below[0],
        )


@invariant("loop", evidence=RATES, logs=True)
def rate_lasts_for_the_run(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The learning rate stays large enough to matter for most of the run.

    Judges: the highest rate of each step after the highest of the run, where it has fallen little
        by little in 20 steps or more. Broken where more than half of the steps are made below 1e-5
        of it, or below 1e-3 of it by a scheduler that is advanced after each step of several
        epochs; a note below 1e-3 (limit) otherwise.
    Allows: 0.1 / t of the highest rate after t steps, which a decay of 1 / t keeps above; a rate
        that is lowered in one or two leaps, as for fine-tuning; zeros, which have a judgement of
        their own. A note where a plateau rule cuts the rate, since the model may be done.
    Misses: decays that take up to half of the run.
    Why: a factor that is meant for each epoch and taken in each step is gone within the first
        epoch, and what follows trains nothing.
    Source: Lightning-AI/pytorch-lightning issue 1476; the documentation of
        torch.optim.lr_scheduler, where each scheduler is advanced once for each epoch.
    """
    level = trace.limit("rate_lasts_for_the_run", _SPENT)
    for course in courses(trace):
        own = [s for s in events(trace, Scheduler) if s.optimizer == course.optimizer]
        low = _below(course, level)
        if not most_of(low, course.steps):
            continue
        by_step = any(s.calls >= _EACH * count(course.every) for s in own)
        epochs = _epochs(trace, course)
        spent = most_of(_below(course, _DEAD), course.steps)
        sure = spent or (by_step and epochs >= _SEVERAL)
        yield Finding(
            f"the learning rate of `{trace.subject}` is gone long before the run ends",
            course.at(low[0]),
            f"below {number(level)} of the highest rate in " + tally(low, course.steps),
            Measure("at most half of them", count(course.steps) / 2, "steps"),
            why="scheduler.step() is called after each step"
            + in_line(*(s.advanced for s in own[:1]))
            + "; once for each epoch may be meant"
            if by_step
            else "a factor may be taken in each step that is meant for each epoch",
            rank=Rank.BROKEN if sure and not any(s.mode for s in own) else Rank.NOTE,
            event=low[0],
            source=own[0].source if own else low[0].source,
        )


def _below(course: Course, level: float) -> list[Step]:
    """Return the steps after the highest rate that are far below it, of a gradual decay."""
    rated = [
        (max(s.rates), s) for s in course.steps if any(s.rates) and all(map(isfinite, s.rates))
    ]
    if count(course.steps) < _IDLE or not rated:
        return []
    peak = max(rate for rate, _ in rated)
    top = next(step.step for rate, step in rated if rate == peak)
    after = [(rate, step) for rate, step in rated if step.step > top]
    low = [s for rate, s in after if rate < peak * min(level, 0.1 / (s.step - top))]
    between = {rate for rate, _ in after if level * peak <= rate < peak}
    return low if len(between) >= _LEAPS else []


def _epochs(trace: Trace[Event], course: Course) -> float:
    """Return how many times the loader was gone through, 0 where that is unknown."""
    batches = trace.conditions.get("batches")
    return count(course.every) / batches if isinstance(batches, int) and batches else 0.0


@invariant("loop", evidence=SCHEDULES)
def rate_follows_schedule(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The learning rate in force is the one that the scheduler set.

    Judges: the rates of the steps against what the scheduler last said, for a single scheduler of
        an optimizer; whether the optimizer that a scheduler drives ever steps; whether a scheduler
        is advanced at all in a run of 20 steps that came to its end, or to its third epoch.
    Allows: rounding, 1e-6 of the rate (limit); differences in half of the steps, so that a rate may
        be changed by hand now and then. A warmup or a damping over the schedule, where the two come
        together. Rates of zero, as of a group that is frozen by hand. A note where the rate keeps a
        fixed ratio to the schedule, where another scheduler drives an optimizer that steps, and for
        one that is never advanced, unless no line of its file could advance it and the run has 2
        epochs or more, and came to its end. A scheduler that only computes rates for steps made by
        hand, and one that may wait for a condition, at its full rate.
    Misses: several schedulers on one optimizer, of which nobody knows who is right; a scheduler at
        its full rate behind a switch that is off.
    Why: somebody else writes the rate, and the schedule in the configuration and in the log is not
        the one that the model is trained with.
    Source: SPOClab-ca/dn3 issue 6 (an added scheduler leaves the rate at its default).
    """
    made = events(trace, Scheduler)
    every = courses(trace)
    for course in every:
        own = [scheduler for scheduler in made if scheduler.optimizer == course.optimizer]
        if len(own) <= 1:
            yield from _overwritten(trace, course, own)
        if own and not any(scheduler.calls for scheduler in own):
            yield from _never_advanced(trace, course, own[0])
    if every and not any(course.by_hand for course in every):
        yield from _in_vain(trace, made)


def _overwritten(
    trace: Trace[Event], course: Course, own: Sequence[Scheduler]
) -> Iterator[Finding]:
    """Yield a finding where most steps are made with another rate than the schedule's."""
    told = [step for step in course.steps if _pairs(step)]
    rounding = trace.limit("rate_follows_schedule", _ROUNDING)
    false = [step for step in told if _differs(step, rounding)]
    if not most_of(false, told) or _converges(false):
        return
    ratios = {tuple(round(_distance(*pair), 4) for pair in _pairs(step)) for step in false}
    fixed = len(ratios) == 1 and inf not in ratios.pop()
    step = false[0]
    true, said = max(_pairs(step), key=lambda pair: abs(pair[0] - pair[1]))
    yield Finding(
        f"the learning rate of `{trace.subject}` is not the one that its scheduler set",
        course.at(step),
        number(true) + f" in force, in {tally(false, told)}",
        number(said) + " by the scheduler",
        why="something writes the rate of the parameter groups after the scheduler did",
        rank=Rank.NOTE if fixed else Rank.BROKEN,
        event=step,
        source=own[0].source if own else step.source,
    )


def _pairs(step: Step) -> list[tuple[float, float]]:
    """Return the known rates above zero of a step, each with what the scheduler said of it."""
    pairs = zip(step.rates, step.reported, strict=False)
    return [(true, told) for true, told in pairs if 0 < true < inf and isfinite(told)]


def _differs(step: Step, rounding: float) -> bool:
    """Say whether a rate of a step is another than the scheduler said."""
    return any(abs(a - b) > rounding * max(abs(a), abs(b)) for a, b in _pairs(step))


def _distance(true: float, told: float) -> float:
    """Return by how many powers of e a rate is above what the scheduler said."""
    return log(true) - log(told) if told > 0 else inf


def _converges(steps: Sequence[Step]) -> bool:
    """Say whether the rate only ever comes closer to the schedule, as in a warmup put over it."""
    away = [max(abs(_distance(*pair)) for pair in _pairs(step)) for step in steps]
    moves = len({step.rates for step in steps}) > 1
    return moves and away[-1] < away[0] and all(b <= a + 1e-9 for a, b in pairwise(away))


def _never_advanced(trace: Trace[Event], course: Course, scheduler: Scheduler) -> Iterator[Finding]:
    """Yield a finding for a scheduler that was made for an optimizer that steps, and left alone."""
    steps, several = count(course.every), _epochs(trace, course) >= _SEVERAL
    over = trace.conditions.get("ended") == "finished"
    if steps >= _IDLE and not scheduler.conditional and (over or several):
        yield Finding(
            f"a scheduler of `{trace.subject}` is never advanced",
            scheduler.name,
            integer(0, "calls") + f" in {steps} steps",
            "at least " + integer(1),
            why="no line of the file that makes it advances it: call scheduler.step()"
            if scheduler.inert
            else "scheduler.step() may be missing, or behind a switch that is off",
            rank=Rank.BROKEN if scheduler.inert and several and over else Rank.NOTE,
            event=scheduler,
        )


def _in_vain(trace: Trace[Event], made: Sequence[Scheduler]) -> Iterator[Finding]:
    """Yield a finding for each scheduler whose optimizer never steps."""
    useful = any(scheduler.optimizer for scheduler in made)
    for scheduler in made:
        if scheduler.calls and not scheduler.optimizer:
            yield Finding(
                f"a scheduler of `{trace.subject}` drives an optimizer that never steps",
                scheduler.name,
                integer(0, "steps") + f" in {scheduler.calls} calls",
                "at least " + integer(1),
                why="the optimizer may have been built again after the scheduler",
                rank=Rank.NOTE if useful else Rank.BROKEN,
                event=scheduler,
            )
