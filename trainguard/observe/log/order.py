"""The points of a column in the order of one run, whatever its counter does."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from trainguard.observe.log.column import LoggedColumn, Point, Stretch

_EDGE = 64  # rows by which the usual distance is known
_MIXED = 8  # parts, from which on a file may be written by two runs in turns
_NEAR = 0.02  # of the length of an epoch: the last batches may be dropped


def settle(column: LoggedColumn) -> int:
    """
    Bring the points of a column into the order of one run; return how many rows were left out.

    A counter that begins again and again after as many steps counts within epochs. One that begins
    again at the start is another run: the last one stays. Parts in turns are put in order.
    """
    if len(column.parts) < 2:
        return 0
    rewinds = [part for part in column.parts if part.rewound]
    if len(column.parts) >= max(_MIXED, column.count / 4) and rewinds:
        _sort(column)
    elif _counts_epochs(column.parts):
        _count_on(column)
    else:
        return _keep_last_run(column)
    return 0


def _sort(column: LoggedColumn) -> None:
    """Put the points of a column in the order of their steps, and count what is said twice."""
    ordered = sorted(column.points, key=lambda p: (p.step, p.number))
    for a, b in pairwise(ordered):
        if a.step == b.step:
            column.repeats.count(a.step, a.value, b.value)
    column.points = [
        p._replace(part=0, number=i)
        for i, p in enumerate(ordered)
        if (i == 0 or ordered[i - 1].step < p.step)
    ]
    first, last = column.parts[0], column.parts[-1]
    only = Stretch(first.source, 0, ordered[0].step, first.time, ordered[-1].step, last.until)
    column.parts = [only]


def _counts_epochs(parts: Sequence[Stretch]) -> bool:
    """Say whether all parts begin alike and, but for the last, end alike: a counter of batches."""
    ends = [part.last for part in parts[:-1]]
    starts = {part.first for part in parts}
    length = max(ends) - min(starts)
    alike = len(starts) == 1 and max(ends) - min(ends) <= _NEAR * max(length, 1)
    return len(parts) > 2 and alike and parts[-1].last <= max(ends)


def _count_on(column: LoggedColumn) -> None:
    """Let a counter that begins again with each epoch go on."""
    stride = _stride(column.points)
    offsets, offset = list[float](), 0.0
    for part in column.parts:
        offsets.append(offset - part.first * (part is not column.parts[0]))
        offset = offsets[-1] + part.last + stride
    column.points = [p._replace(step=p.step + offsets[p.part], part=0) for p in column.points]
    last, only = column.parts[-1], column.parts[0]
    only.last, only.until = column.points[-1].step, last.until
    column.parts = [only]


def _keep_last_run(column: LoggedColumn) -> int:
    """Drop the rows of runs before the last one that began at the start."""
    begin = column.parts[0].first
    again = [n for n, part in enumerate(column.parts) if n and part.rewound and part.first <= begin]
    if not again:
        return 0
    at, before = again[-1], column.parts[again[-1]].begin
    kept = [p for p in column.points if p.part >= at]
    column.points = [p._replace(part=p.part - at, number=p.number - before) for p in kept]
    column.parts = column.parts[at:]
    column.parts[0].rewound = False
    column.count -= before
    return before


def _stride(points: Sequence[Point]) -> float:
    """Return how many steps usually lie between two rows."""
    gaps = [b.step - a.step for a, b in pairwise(points[:_EDGE]) if b.step > a.step]
    return median(gaps) if gaps else 1.0
