"""
Curves of several seeds against several others: as distributions, at a stated false-alarm rate.

Each curve is cut into stretches; in each, the means of the runs of one side are held against those
of the other by Student's t. Seeds are not paired: a change that draws other numbers is no departure
as long as it learns alike.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import atan, cos, inf, isfinite, pi, sin, sqrt
from statistics import fmean, variance
from typing import Final

from trainguard.curves.curve import Curve
from trainguard.curves.tolerance import ENVELOPES, ROUNDING, CurveDeparture, changes, departure

FALSE_ALARMS: Final = 1e-3  # of a comparison, over all its stretches, where nothing has changed
STRETCHES: Final = 10


def departs(kept: Curve, found: Curve, envelopes: float = ENVELOPES) -> CurveDeparture | None:
    """Return how a curve departs from its snapshot, whichever way they are compared, or None."""
    if len(kept.runs) != len(found.runs):
        seeds = len(kept.runs), len(found.runs)
        return CurveDeparture("seeds", kept=seeds[0], found=seeds[1], changed=changes(kept, found))
    if len(kept.runs) > 1:
        return spread_departure(kept, found)
    return departure(kept, found, envelopes)


def spread_departure(kept: Curve, found: Curve) -> CurveDeparture | None:
    """Return how the runs of several seeds depart from those of a snapshot, or None."""
    cuts = _cuts(len(kept.steps))
    if kept.steps != found.steps or not cuts:
        return CurveDeparture(
            "length", kept=kept.made, found=found.made, changed=changes(kept, found)
        )
    ways = [
        _apart(_means(kept, a, b), _means(found, a, b), FALSE_ALARMS / len(cuts)) for a, b in cuts
    ]
    excess = tuple(abs(away) / allowed if isfinite(away) else inf for _, _, away, allowed in ways)
    out = next((row for row, times in enumerate(excess) if times > 1), None)
    if out is None:
        return None
    before, after, away, allowed = ways[out]
    return CurveDeparture(
        "slope" if out else "offset",
        kept.steps[cuts[out][0]],
        before,
        after,
        away,
        allowed,
        kept.steps[-1],
        ways[-1][2],
        excess,
        changes(kept, found),
    )


def critical(freedom: int, chance: float) -> float:
    """Return the t that is exceeded, on either side, with this chance."""
    low, high = 0.0, 1.0
    while 1 - _within(high, freedom) > chance and high < 1e6:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - _within(middle, freedom) > chance else (low, middle)
    return high


def _means(curve: Curve, first: int, last: int) -> list[float]:
    """Return the mean of each run over some rows."""
    return [fmean(run[first:last]) for run in curve.runs]


def _apart(
    kept: Sequence[float], found: Sequence[float], chance: float
) -> tuple[float, float, float, float]:
    """Return the means of two sides, their relative difference and the one that is allowed."""
    before, after = fmean(kept), fmean(found)
    scale = max(abs(before), abs(after)) or 1.0
    freedom = len(kept) + len(found) - 2
    pooled = variance(kept) * (len(kept) - 1) + variance(found) * (len(found) - 1)
    error = sqrt(pooled / freedom * (1 / len(kept) + 1 / len(found)))
    allowed = critical(freedom, chance) * error / scale + ROUNDING
    away = (after - before) / scale
    return before, after, away if isfinite(away) else inf, allowed


def _within(t: float, freedom: int) -> float:
    """Return the chance that Student's t lies between -t and t, for whole degrees of freedom."""
    angle = atan(t / sqrt(freedom))
    term = total = cos(angle) if freedom % 2 else 1.0
    for power in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cos(angle) ** 2 * (power - 1) / power
        total += term
    if freedom == 1:
        return 2 * angle / pi
    return (2 / pi) * (angle + sin(angle) * total) if freedom % 2 else sin(angle) * total


def _cuts(points: int) -> list[tuple[int, int]]:
    """Return the rows at which stretches begin and end."""
    marks = [points * part // STRETCHES for part in range(STRETCHES + 1)]
    return [(a, b) for a, b in pairwise(marks) if a < b]
