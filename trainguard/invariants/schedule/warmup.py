"""Judgements of the warmup and of the peak that it leads to."""

from collections.abc import Iterator
from math import isclose

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer
from trainguard.events.trace import Tick, Trace
from trainguard.invariants.schedule.run import ROUNDING, ScheduleRun, once, sound_runs
from trainguard.invariants.wording import number

_RISING = ("warmup-decay", "warmup-constant", "one-cycle")


@invariant("schedule", per="subject", needs=["warmup"])
def warmup_rises(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The rate rises during the warmup, and never falls.

    Judges: each parameter group in the steps of the promised warmup; that it is higher at some
        step of it, or at the one after, than at step 0.
    Allows: rounding, 1e-6 of the rate; steps of equal rate; a warmup of one step that is flat.
    Misses: a warmup that rises too fast or in one leap.
    Why: a warmup that is missing, or that falls, gives the largest updates to the rawest weights.
    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2.
    """
    yield from once(f for run in sound_runs(trace) for f in _falls_in_warmup(run))


def _falls_in_warmup(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for each group whose warmup falls, or is none."""
    warmup = int(run.promise("warmup") or 0)
    for group in run.groups:
        rates = run.rates(group)[: warmup + 1]
        fall = next(
            (i for i in range(1, len(rates[:warmup])) if rates[i] < rates[i - 1] * (1 - ROUNDING)),
            None,
        )
        if fall is not None:
            yield Finding(
                f"the rate of `{run.trace.subject}` falls during its warmup",
                run.at(fall, group),
                number(rates[fall - 1]) + f" to {number(rates[fall])}",
                f"no fall before {run.word('unit') or 'step'} {warmup}",
                event=run.ticks[fall],
            )
        elif warmup >= 2 and len(rates) > 2 and max(rates) <= rates[0] * (1 + ROUNDING):
            yield Finding(
                f"the rate of `{run.trace.subject}` does not rise during its warmup",
                run.at(len(rates) - 1, group),
                number(rates[0]) + f" to {number(rates[-1])}",
                "a rise",
                why="the warmup is missing, or the schedule is never advanced",
                event=run.ticks[len(rates) - 1],
            )


@invariant("schedule", per="subject", needs=["warmup", "peak"])
def warmup_reaches_peak(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The peak is reached by the end of the warmup.

    Judges: the highest rate of all groups from step 0 to the end of the promised warmup.
    Allows: 1 % below the promised peak (limit); a warmup that outlasts the run.
    Misses: groups of lower rate, since the peak is promised for the highest.
    Why: steps taken for epochs, or the reverse, leave the run at a fraction of the rate it needs.
    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2;
        facebookresearch/ParlAI pull request 4384 (a warmup that never ended).
    """
    yield from once(f for run in sound_runs(trace) for f in _short_of_peak(run))


def _short_of_peak(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding where the rate is below the peak when the warmup is over."""
    warmup, peak = int(run.promise("warmup") or 0), run.promise("peak") or 0.0
    least = peak * (1 - run.trace.limit("warmup_reaches_peak", 0.01))
    if warmup >= len(run.ticks):
        return
    reached = max(run.highest[: warmup + 1])
    if reached < least:
        yield Finding(
            f"`{run.trace.subject}` has not reached its peak when the warmup is over",
            run.at(warmup),
            number(reached),
            ">= " + number(least),
            why=_guess_shortfall(run, reached, peak),
            event=run.ticks[warmup],
        )


def _guess_shortfall(run: ScheduleRun, reached: float, peak: float) -> str:
    """Return what usually keeps a rate so far below its peak; empty where nothing tells."""
    if isclose(reached, peak * peak, rel_tol=ROUNDING):
        return "it is the square of the peak: LambdaLR multiplies the rate by what it is given"
    if run.word("unit") == "epoch":
        return "the warmup may be counted in steps and advanced once per epoch"
    return ""


@invariant("schedule", per="subject", needs=["peak"])
def peak_is_not_exceeded(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    No rate is above the promised peak.

    Judges: every parameter group at every step.
    Allows: 1 % above the promised peak (limit).
    Misses: rates above the peak after the promised total.
    Why: a rate scaled twice, by the batch size or by a second schedule, ends in nan.
    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.1: the rate is
        scaled with the batch, and beyond 8,192 that no longer holds.
    """
    yield from once(f for run in sound_runs(trace) for f in _above_peak(run))


def _above_peak(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the highest rate of a run, where that is above the peak."""
    most = run.top * (1 + run.trace.limit("peak_is_not_exceeded", 0.01))
    index = run.crest
    rates = run.ticks[index].rates
    if max(rates) > most:
        yield Finding(
            f"the rate of `{run.trace.subject}` exceeds its peak",
            run.at(index, rates.index(max(rates))),
            number(max(rates)),
            "<= " + number(most),
            event=run.ticks[index],
        )


@invariant("schedule", per="subject", needs=["total"])
def warmup_is_short(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The peak is reached early in the run.

    Judges: the share of the total before the rate is within 1 % of the promised peak, or of the
        highest rate; where a warmup, or a shape with one, is promised.
    Allows: 20 % of the total (limit), 45 % for one-cycle; up to half the total it is a note.
        Lengths that are drawn are not judged: they are the property's range, not a choice.
    Misses: a warmup that is short and still too long for what the run costs.
    Why: at 95 minutes an epoch, ten epochs of warmup are sixteen hours at a fraction of the rate.
    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2: 5 epochs of
        90.
    """
    yield from once(f for run in sound_runs(trace) for f in _late_peaks(run))


def _late_peaks(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding where the peak comes late in the run, or never."""
    shape, total = run.word("shape"), run.promise("total") or 0.0
    if run.is_drawn("warmup") or run.is_drawn("total"):
        return
    if shape not in _RISING and run.promise("warmup") is None:
        return
    allowed = run.trace.limit("warmup_is_short", 0.45 if shape == "one-cycle" else 0.2)
    reached = next((i for i, rate in enumerate(run.highest) if rate >= 0.99 * run.top), None)
    if reached is not None and reached <= allowed * total:
        return
    never = reached is None
    index = len(run.ticks) - 1 if reached is None else reached
    note = not never and index <= 0.5 * total
    yield Finding(
        f"`{run.trace.subject}` never reaches its peak"
        if never
        else f"the warmup of `{run.trace.subject}` takes a large part of the run",
        run.at(index),
        number(max(run.highest)) + " at most"
        if never
        else integer(100 * index / total, "%") + " of the total",
        number(run.top) if never else integer(100 * allowed, "%") + " of the total",
        rank=Rank.NOTE if note else Rank.BROKEN,
        event=run.ticks[index],
    )
