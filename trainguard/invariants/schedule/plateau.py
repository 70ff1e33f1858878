"""Judgements of rules that cut the rate when a metric stops improving."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, number
from trainguard.events.trace import Tick, Trace
from trainguard.invariants.schedule.run import ROUNDING, ScheduleRun, drives, once

# What the metric did, as the observer fed it, and how a sentence about it goes on.
STANDING = {
    "flat": "stands still",
    "negative and flat": "stands still below zero",
    "nan, then flat": "stands still after one nan",
}
IMPROVING = {
    "improving": "improves",
    "negative and improving": "improves below zero",
    "nan, then improving": "improves after one nan",
}


@invariant("schedule", probe="plateau", per="subject", needs=["patience"])
def plateau_waits_for_patience(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The rate is cut once the metric has not improved for the promised patience, not before.

    Judges: the cuts on metrics that are flat, that improve by 10 % in time, the same below zero,
        and the same after one nan; in the promised mode.
    Allows: a cut at any time between the patience and twice that; the nan as one bad metric.
        Metrics below zero are left out where only positive ones are declared in `metrics`, and
        are a note where none are declared.
    Misses: improvements smaller than the rule's threshold; noise; the size of the cut.
    Why: a threshold of `best * 0.99` is turned around when the loss is negative, and a best that
        has become nan is never beaten.
    Source: facebookresearch/fairseq pull request 4071 (a resumed run had lost its count of bad
        epochs).
    """
    yield from once(f for run in drives(trace, *STANDING, *IMPROVING) for f in _wrong_cuts(run))


def _wrong_cuts(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding where a rule cuts too early, for no reason, or never."""
    phase, patience = run.ticks[0].phase, int(run.promise("patience") or 0)
    rank = _rank(run) if "negative" in phase else Rank.BROKEN
    if rank is None or ("nan" in phase and patience < 2):
        return
    rates = run.highest
    cuts = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1] * (1 - ROUNDING)]
    bad = cuts[0] - 1 if cuts else len(rates) - 2  # the first metric is the best so far
    subject = run.trace.subject
    if phase in STANDING and not cuts:
        yield Finding(
            f"`{subject}` does not cut the rate when the metric {STANDING[phase]}",
            run.at(len(rates) - 1),
            "no cut after " + integer(bad, "metrics") + " without improvement",
            "a cut after " + integer(patience) + " of them, or little more",
            why=_why_blind(phase),
            rank=rank,
            event=run.ticks[-1],
        )
    elif cuts and (phase in IMPROVING or (bad < patience and "nan" not in phase)):
        words = {**STANDING, **IMPROVING}[phase]
        yield Finding(
            f"`{subject}` cuts the rate "
            + (
                f"although the metric {words}"
                if phase in IMPROVING
                else "before its patience is over"
            ),
            run.at(cuts[0]),
            "a cut after "
            + integer(cuts[0], "metrics")
            + f", the last {number(run.ticks[cuts[0] - 1].metric)}",
            "no cut" if phase in IMPROVING else "no cut in the first " + integer(patience + 1),
            why=_why_blind(phase),
            rank=rank,
            event=run.ticks[cuts[0]],
        )


def _rank(run: ScheduleRun) -> Rank | None:
    """Return how sure a finding about metrics below zero is: None where they cannot occur."""
    metrics = run.trace.promises.get("metrics")
    if not isinstance(metrics, tuple) or not metrics:
        return Rank.NOTE
    negative = any(isinstance(m, int | float) and m < 0 for m in metrics)
    return Rank.BROKEN if negative else None


def _why_blind(phase: str) -> str:
    """Guess why a rule misreads a sequence of metrics."""
    if "negative" in phase:
        return "a threshold such as best * 0.99 asks for less than nothing when best is negative"
    return "a nan may have become the best metric so far" if "nan" in phase else ""
