"""Judgement of how fast a logged run goes on."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import at, part_of, rows
from trainguard.invariants.loop.evidence import some
from trainguard.invariants.wording import number

_LEAST = 40  # rows whose time is known
_SLOWER = 1.5
_LONG = 60.0  # seconds: a shorter run is slowed by whatever else the machine does meanwhile


def _quickest(paces: Iterable[float]) -> float:
    """Return the pace that a tenth of the steps keep: the others may have waited for others."""
    ordered = sorted(paces)
    return ordered[len(ordered) // 10]


@invariant("log", evidence=some(Step, "no time was logged", lambda s: s.seconds > 0))
def throughput_lasts(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Training throughput does not degrade over the run.

    Judges: logs with a time in 40 rows or more: the seconds that the quickest tenth of the steps
        in each quarter take.
    Allows: 1.5 times (limit) those of the fastest quarter before, pauses between parts, and logs of
        less than a minute. What is found is a note.
    Misses: a run that was slow from the beginning; one whose last quarter is not slower.
    Why: a list that grows, a loader that falls behind or a device that throttles makes each day
        of a run longer than the one before.
    Source: smallcorgi/Faster-RCNN_TF issue 10 (0.4 s for a step at first, 1 s later).
    """
    told = [(row, row.seconds) for row in rows(trace) if row.seconds > 0]
    lasted = sum(a.seconds * (b.step - a.step) for (a, _), (b, _) in pairwise(told))
    if len(told) < _LEAST or lasted < _LONG:
        return
    quarters = [part_of(told, n / 4, (n + 1) / 4) for n in range(4)]
    paces = [_quickest(seconds for _, seconds in quarter) for quarter in quarters]
    best, most = min(paces), trace.limit("throughput_lasts", _SLOWER)
    if paces[-1] <= most * best or paces[-1] < paces[-2] / most:
        return
    slow = next(n for n in range(4) if paces[n] > most * min(paces[: n + 1]) or n == 3)
    row = quarters[slow][0][0]
    yield note(
        f"`{trace.subject}` becomes slower",
        at(trace, row),
        number(paces[-1], "s a step") + " in the last quarter",
        "at most " + number(most * best, "s") + f": it was {best:.4g} s",
        why="perhaps something grows with each step, the loader falls behind, or others use the"
        " machine",
        event=row,
    )
