"""
How far a curve may be from its snapshot, and how it departs from it.

The band is measured, not chosen: how far the run drifts when its parameters begin one unit in the
last place elsewhere. That is what another machine, version or order of summation amounts to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import atan, copysign, cos, inf, isfinite, pi, sin, sqrt
from statistics import fmean, median, variance
from typing import Final, Literal

from trainguard.curves.curve import CONDITIONS, Curve

Kind = Literal["offset", "slope", "jump", "noise", "length", "seeds"]
ENVELOPES: Final = 30.0  # times the measured drift that is allowed
ROUNDING: Final = 1e-6  # allowed beside it
NAMED: Final = tuple(name for name in CONDITIONS if name != "trainguard")  # change no number
_EARLY = 3  # points: what differs from the first update on shows within them
_SUDDEN = 0.1  # of the first departure: what was less than this before it was no approach
_TURNS = 0.3  # of the pairs of neighbours that change sides: by chance it is half
_LEAST = 8  # points outside the band that a pattern is read from
FALSE_ALARMS: Final = 1e-3  # of a comparison, over all its stretches, where nothing has changed
STRETCHES: Final = 10


@dataclass(frozen=True, slots=True)
class CurveDeparture:
    """
    Where and how a curve leaves the band of its snapshot.

    kind: what the difference looks like; "length" where only the number of steps differs, "seeds"
        where that of the runs does.
    step: the first step outside. kept, found: the values there. size, allowed: relative to `kept`.
    last, final: the last step that both have, and the difference there.
    excess: the difference as a multiple of what is allowed, for each step that both have.
    changed: the conditions that differ, as (name, before, now).
    """

    kind: Kind
    step: int = 0
    kept: float = 0.0
    found: float = 0.0
    size: float = 0.0
    allowed: float = 0.0
    last: int = 0
    final: float = 0.0
    excess: tuple[float, ...] = ()
    changed: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Aligned:
    """What two curves have in common: at each step both values, their difference and the band."""

    steps: tuple[int, ...]
    kept: tuple[float, ...]
    found: tuple[float, ...]
    differences: tuple[float, ...]
    band: tuple[float, ...]

    @property
    def excess(self) -> tuple[float, ...]:
        """The differences as multiples of the band; infinite where one is not finite."""
        return tuple(
            abs(difference) / allowed if isfinite(difference) else inf
            for difference, allowed in zip(self.differences, self.band, strict=True)
        )


def align(kept: Curve, found: Curve, envelopes: float = ENVELOPES) -> Aligned:
    """Lay a curve over its snapshot: relative differences at the steps that both have."""
    rows = found.rows
    drift = kept.drift or (0.0,) * len(kept.steps)
    columns = [
        (step, value, (now := found.values[rows[step]]), _relative(now - value, scale), away)
        for step, value, scale, away in zip(
            kept.steps, kept.values, kept.scales(), drift, strict=True
        )
        if step in rows
    ]
    steps, values, nows, differences, away = zip(*columns, strict=True) if columns else [()] * 5
    band = tuple(envelopes * each + ROUNDING for each in away)
    return Aligned(steps, values, nows, differences, band)


def departure(kept: Curve, found: Curve, envelopes: float = ENVELOPES) -> CurveDeparture | None:
    """Return how a curve departs from its snapshot, or None where it stays in the band."""
    both = align(kept, found, envelopes)
    excess = both.excess
    changed = changes(kept, found)
    out = next((row for row, times in enumerate(excess) if times > 1), None)
    if out is not None:
        return CurveDeparture(
            _kind(both, excess, out),
            both.steps[out],
            both.kept[out],
            both.found[out],
            both.differences[out],
            both.band[out],
            both.steps[-1],
            both.differences[-1],
            excess,
            changed,
        )
    if kept.made != found.made or 2 * len(both.steps) < max(len(kept.steps), len(found.steps)):
        return CurveDeparture("length", kept=kept.made, found=found.made, changed=changed)
    return None


def changes(kept: Curve, found: Curve) -> tuple[tuple[str, str, str], ...]:
    """Return the conditions that differ between two curves, where both are known."""
    pairs = ((name, kept.conditions.get(name), found.conditions.get(name)) for name in NAMED)
    return tuple((name, a, b) for name, a, b in pairs if a and b and a != b)


def _relative(difference: float, scale: float) -> float:
    """Return a difference relative to a size; what differs from nothing but zeros is infinite."""
    if scale:
        return difference / scale
    return 0.0 if difference == 0 else copysign(inf, difference)


def _kind(both: Aligned, excess: Sequence[float], out: int) -> Kind:
    """Say what a departure looks like."""
    sides = [d for d, times in zip(both.differences, excess, strict=True) if times > 1]
    if _is_noise(sides):
        return "noise"
    if both.steps[out] == both.steps[0]:
        return "offset"
    before = max((abs(d) for d in both.differences[:out]), default=0.0)
    sudden = before < _SUDDEN * abs(both.differences[out])
    return "jump" if out >= _EARLY and sudden else "slope"


def _is_noise(sides: Sequence[float]) -> bool:
    """Say whether differences change sides as by chance, and do not grow."""
    if len(sides) < _LEAST or not all(map(isfinite, sides)):
        return False
    turns = sum((a > 0) != (b > 0) for a, b in pairwise(sides))
    half = len(sides) // 2
    grown = median(map(abs, sides[half:])) > 4 * median(map(abs, sides[:half]))
    return turns > _TURNS * (len(sides) - 1) and not grown


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
