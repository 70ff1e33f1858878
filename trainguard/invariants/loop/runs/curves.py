"""Judgements of curves that are kept as snapshots."""

from collections.abc import Iterator, Sequence
from math import isfinite, log10

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import Measure, at_step
from trainguard.curves.curve import Curve, Unreadable, noun
from trainguard.curves.tolerance import ENVELOPES, FALSE_ALARMS, CurveDeparture, departs
from trainguard.events.base import Event
from trainguard.events.curve import Kept
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import events
from trainguard.invariants.wording import number

_UPDATE = "--snapshot-update blesses the curve as it is now"
_WIDTH = 50  # characters of a sparkline
_RAMP = ".:-=+*#%@"
_LIKELY = {
    "offset": "it differs from the first step on: perhaps other data or another initialisation",
    "slope": "it drifts away from the first updates on: perhaps another rate, or another setting of"
    " the optimizer",
    "jump": "it agrees up to there and then differs at once: perhaps a schedule, or data of that"
    " step",
    "noise": "it is now above, now below: perhaps another order of the data, other random numbers"
    " or another precision",
}


@invariant("loop", probe="curve", needs={"curve"})
def curve_matches_snapshot(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The curves of a run match their blessed snapshot.

    Judges: each declared column against its snapshot, step by step.
    Allows: 30 times (limit) the drift that was measured when the curve was blessed, up to that
        step: of five runs whose parameters began one unit in the last place elsewhere; and 1e-6.
        With seeds, what Student's t of ten stretches allows at 1 false alarm in 1000 comparisons.
    Misses: what changes a run by less than rounding is amplified to; with seeds, any change that
        is small against the spread of the seeds.
    Why: a rate, a reduction, a schedule or an order that changed by accident still trains.
    Source: Karpathy, "A Recipe for Training Neural Networks"
        (karpathy.github.io/2019/04/25/recipe): a training fails silently.
    """
    for kept in events(trace, Kept):
        yield from _of(trace, kept)


def _of(trace: Trace[Event], kept: Kept) -> Iterator[Finding]:
    """Yield what is wrong with one curve."""
    what = f"the {noun(kept.column)} of `{trace.subject}`"
    if not kept.found:
        yield _absent(what, kept)
    elif kept.refused:
        yield Finding(
            f"{what} was not blessed",
            measured=kept.refused,
            allowed="a finite curve of a run in which nothing else is broken",
            why="mend or excuse that first: a snapshot says that all is well",
            event=kept,
        )
    elif not kept.kept:
        yield Finding(
            f"{what} has no snapshot",
            measured=f"no file {kept.place}",
            allowed="a snapshot of each declared curve",
            why=_UPDATE,
            event=kept,
        )
    else:
        yield from _compare(trace, kept, what)


def _absent(what: str, kept: Kept) -> Finding:
    """Return a finding for a column that the run does not have."""
    if kept.column == "memory":
        return note(
            f"{what} was not compared, for want of an accelerator",
            why="on a CPU it is that of the whole process, whatever ran in it before",
            event=kept,
        )
    return Finding(
        f"{what} is not known",
        measured="no step that has one",
        allowed="a value in some steps",
        why="perhaps nothing is handed to backward, or steps are made by hand",
        event=kept,
    )


def _compare(trace: Trace[Event], kept: Kept, what: str) -> Iterator[Finding]:
    """Yield a finding for a curve that left the band of its snapshot, or a bad file."""
    found = Curve.from_text(kept.found, finite=False)
    envelopes = trace.limit("curve_matches_snapshot", ENVELOPES)
    try:
        away = departs(Curve.from_text(kept.kept), found, envelopes)
    except Unreadable as fault:
        yield Finding(
            f"the snapshot of {what} cannot be read",
            measured=f"{kept.place}: {fault}",
            allowed="a file as --snapshot-update wrote it",
            why=f"take it from version control again, or {_UPDATE}",
            event=kept,
        )
        return
    if away is not None and away.kind in ("length", "seeds"):
        yield _unequal(what, kept, away)
    elif away is not None:
        yield _make_departure_finding(what, kept, away, len(found.runs))
    if kept.apart:
        yield _kept_apart(what, kept, departs(Curve.from_text(kept.apart), found, envelopes))


def _unequal(what: str, kept: Kept, away: CurveDeparture) -> Finding:
    """Return a finding for a curve of another length, or of another number of seeds."""
    length = away.kind == "length"
    unit = "step" if length else "seed"
    return Finding(
        f"{what} has {'another length' if length else 'other seeds'} than its snapshot",
        measured=Measure(
            f"{away.found:.0f} {unit}{'s' * (away.found != 1)}", away.found, f"{unit}s"
        ),
        allowed=Measure(f"{away.kept:.0f} {unit}{'s' * (away.kept != 1)}", away.kept, f"{unit}s"),
        why=f"{_list_changes(away)}what both have agrees; if it is meant, {_UPDATE}"
        if length
        else f"what is compared as distributions is blessed as such: {_UPDATE}",
        event=kept,
    )


def _count(value: float, unit: str) -> Measure:
    """Write a number of steps or seeds."""
    return Measure(f"{value:.0f} {unit}{'s' * (value != 1)}", value, f"{unit}s")


def _make_departure_finding(what: str, kept: Kept, away: CurveDeparture, seeds: int) -> Finding:
    """Return a finding for a curve that left the band of its snapshot."""
    rate = f", at {FALSE_ALARMS:g} false alarms a comparison" if seeds > 1 else ""
    of = f"a mean of {seeds} seeds" if seeds > 1 else "the value"
    return Finding(
        f"{what} left the band of its snapshot",
        at_step(away.step) + f", and up to step {away.last}",
        number(away.size) + f" of {of} ({away.kept:.7g} then, {away.found:.7g} now),"
        f" {number(away.final)} at step {away.last}",
        number(away.allowed) + f" of {of}{rate}",
        curve=f"{sparkline(away.excess)}  difference over band, by powers of ten",
        why=f"{_list_changes(away)}{_likely(kept.column, away)}; if it is meant, {_UPDATE}",
        event=kept,
    )


def _likely(column: str, away: CurveDeparture) -> str:
    """Say what a departure may come from; a rate speaks for itself."""
    if column.startswith("rate"):
        return f"another rate or another schedule{' from there on' * (away.kind != 'offset')}"
    return _LIKELY[away.kind]


def _kept_apart(what: str, kept: Kept, away: CurveDeparture | None) -> Finding:
    """Return a note of a snapshot that was just written for one version of torch alone."""
    how = (
        f"{number(away.size)} of the value at step {away.step}, {number(away.final)} at the end"
        if away
        else "the common snapshot holds"
    )
    return note(
        f"{what} is now kept apart for this version of torch",
        measured=f"{kept.place}: {how}",
        allowed="one snapshot for all versions",
        why=f"{_list_changes(away) if away else ''}the snapshot of the other version stays as it is"
        "; delete it where the change is meant for all versions",
        event=kept,
    )


def _list_changes(away: CurveDeparture) -> str:
    """Write the conditions that differ, which come before any guess."""
    told = [f"{name} was {before} and is {now}" for name, before, now in away.changed]
    return f"{'; '.join(told)}; " if told else ""


def sparkline(excess: Sequence[float]) -> str:
    """Draw differences as multiples of the band: `_` inside of it, darker by each power of ten."""
    size = -(-len(excess) // _WIDTH)
    parts = [max(excess[at : at + size]) for at in range(0, len(excess), size or 1)]
    return "".join("_" if part <= 1 else _RAMP[_power(part)] for part in parts)


def _power(times: float) -> int:
    """Return how dark a multiple of the band is drawn."""
    return min(int(log10(times)), len(_RAMP) - 1) if isfinite(times) else len(_RAMP) - 1
