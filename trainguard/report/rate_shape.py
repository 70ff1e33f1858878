"""The shape of a learning rate, fitted to the rows of a log and named."""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise, product, takewhile
from math import cos, exp, inf, log, pi, sqrt
from statistics import fmean, median
from typing import Final

Rated = Sequence[tuple[float, float]]  # steps and rates
_LEAST: Final = 5  # rows
_SAME: Final = 1e-3  # of a rate: what logs write has four digits or more
_FITS: Final = 0.01  # of what the rate falls by: more than four digits leave, less than two shapes
_LEAP: Final = 1.5  # times the row before: a restart, where a warm-up takes smaller strides
_HELD: Final = 3  # rows of the same rate that are a stretch of their own
_REGULAR: Final = 0.1  # of the distance between two drops
_MOST: Final = 256  # rows that a shape is fitted to
_PERIODS: Final = [0.9 * 1.04**n for n in range(50)]  # of a cosine, in lengths of what is logged


def name_shape(told: Rated, unit: str = "step") -> str:
    """Return the shape of the rates of a run in words, or nothing where they are too few."""
    if len(told) < _LEAST or min(rate for _, rate in told) < 0:
        return ""
    told = _space(told)
    peak = max(rate for _, rate in told)
    top = next(n for n, (_, rate) in enumerate(told) if rate >= (1 - _SAME) * peak)
    words = []
    if told[0][1] < 0.95 * peak and all(a <= b for (_, a), (_, b) in pairwise(told[: top + 1])):
        words.append("warm-up" + (f" to {unit} {told[top][0]:g}" if top < len(told) - 1 else ""))
        told = told[top:]
    if len(told) >= _LEAST or not words:
        words.append(_name_rest(told, peak, unit))
    return ", then ".join(words)


def _space(told: Rated) -> Rated:
    """Return the rows without those that lie closer than usual: the first ones of a long log."""
    usual, spaced = _stride(told), list[tuple[float, float]]()
    for step, rate in told:
        if not spaced or step - spaced[-1][0] >= usual / 2:
            spaced.append((step, rate))
    return spaced if len(spaced) >= _LEAST else told


def _stride(told: Rated) -> float:
    """Return how far two rows usually lie apart."""
    return median(b - a for (a, _), (b, _) in pairwise(told))


def _name_rest(told: Rated, peak: float, unit: str) -> str:
    """Return the shape of what follows a warm-up: how often it begins again, and what is held."""
    restarts = [
        n + 1 for n, ((_, a), (_, b)) in enumerate(pairwise(told)) if b > _LEAP * a and b > peak / 2
    ]
    if restarts:
        ends = [0, *restarts, len(told)]
        longest = max((told[a:b] for a, b in pairwise(ends)), key=len)
        times = f"{len(restarts)} time{'s' * (len(restarts) > 1)}"
        return f"{_name_decay(longest)}, begun again {times}"
    if all(rate >= (1 - _SAME) * peak for _, rate in told):
        return f"constant at {peak:.4g}"
    if any(b > (1 + _SAME) * a for (_, a), (_, b) in pairwise(told)):
        return "up and down"
    levels, stride = _levels(told), _stride(told)
    apart = [b - a for (a, _), (b, _) in pairwise(levels)]
    if len(levels) == 2 or median(apart[1:]) >= _HELD * stride:
        return _name_levels(levels, apart, stride, unit)
    least = max(_HELD, len(told) / 10)
    top, bottom = _held(told), _held(told[::-1])
    begin = top - 1 if top >= least else 0
    end = len(told) - bottom + 1 if bottom >= least else None
    before = f"constant to {unit} {told[begin][0]:g}, then " if begin else ""
    after = f", then constant at {told[-1][1]:.4g}" if end else f" to {told[-1][1]:.4g}"
    return before + _name_decay(told[begin:end]) + after


def _held(told: Rated) -> int:
    """Return how many rows in a row have the rate of the first."""
    return len([*takewhile(lambda point: point[1] == told[0][1], told)])


def _levels(told: Rated) -> list[tuple[float, float]]:
    """Return where the rate changes, and to what."""
    return [next(same) for _, same in groupby(told, key=lambda point: f"{point[1]:.4g}")]


def _name_levels(levels: Rated, apart: Sequence[float], stride: float, unit: str) -> str:
    """Return the shape of a rate that stands still between its changes."""
    inner = apart[1:] or apart
    regular = max(inner) - min(inner) <= max(stride, _REGULAR * max(inner))
    if len(levels) > _LEAST and regular:
        shape = _name_decay(levels)
        if shape not in (_OTHER, "exponential"):
            return f"{shape} to {levels[-1][1]:.4g}, moved every {fmean(inner):.4g} {unit}s"
    uneven = "" if regular else " at uneven distances, as of a plateau"
    return f"steps{uneven}, {len(apart)} down to {levels[-1][1]:.4g}"


_OTHER: Final = "another shape"
# Shapes that are lines once the rate is read otherwise: how it is read, and what undoes that.
_LINES: Final[dict[str, tuple[Callable[[float], float], Callable[[float], float]]]] = {
    "linear": (lambda r: r, lambda y: y),
    "exponential": (log, exp),
    "inverse square root": (lambda r: r**-2, lambda y: max(y, 1e-300) ** -0.5),
    "quadratic": (sqrt, lambda y: max(y, 0.0) ** 2),
}


def _name_decay(told: Rated) -> str:
    """Return the shape that fits best, where one does."""
    if len(told) < _LEAST:
        return _OTHER
    told = told[:: 1 + len(told) // _MOST]
    errors = {"cosine": _error_of_cosine(told)}
    positive = [point for point in told if point[1] > 0]
    for name, (read, undo) in _LINES.items():
        own = positive if name in ("exponential", "inverse square root") else told
        errors[name] = _error(own, read, undo) if len(own) >= len(told) - 1 else inf
    best = min(errors, key=errors.__getitem__)
    fall = max(rate for _, rate in told) - min(rate for _, rate in told)
    return best if errors[best] <= _FITS * fall else _OTHER


def _error(told: Rated, read: Callable[[float], float], undo: Callable[[float], float]) -> float:
    """Return the greatest distance of the rates from the line that fits them as they are read."""
    xs, ys = [step for step, _ in told], [read(rate) for _, rate in told]
    slope, level = _line(xs, ys)
    pairs = zip(xs, told, strict=True)
    return max(abs(undo(level + slope * x) - rate) for x, (_, rate) in pairs)


def _error_of_cosine(told: Rated) -> float:
    """Return the same for the cosine that fits best: its peak may lie before the first row."""
    span, stride = told[-1][0] - told[0][0], told[1][0] - told[0][0]
    rates, best = [rate for _, rate in told], inf
    for begin, period in product((0.0, 0.5 * stride, stride), _PERIODS if span > 0 else ()):
        whole = period * (span + begin)
        xs = [1 + cos(pi * min(1.0, (x - told[0][0] + begin) / whole)) for x, _ in told]
        slope, level = _line(xs, rates)
        pairs = zip(xs, rates, strict=True)
        best = min(best, max(abs(level + slope * x - rate) for x, rate in pairs))
    return best


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the slope and the level of the line of least squares."""
    x, y = fmean(xs), fmean(ys)
    size = sum((each - x) ** 2 for each in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / size if size else 0.0
    return slope, y - slope * x
