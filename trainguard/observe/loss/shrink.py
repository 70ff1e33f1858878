"""Make a counterexample as simple as it can be while the judge still objects to it."""

from collections.abc import Callable
from itertools import combinations
from math import floor, log10

import torch

from trainguard.observe.tools.points import Box, Points

Objects = Callable[[Points], list[bool]]
_PASSES = 3
_MOST_ELEMENTS = 256


def shrink(box: Box, point: Points, objects: Objects) -> Points:
    """
    Return a point at which every number is as round as possible and the judge still objects.

    First all inputs together take one round value, then numbers that several inputs share (failures
    live on coincidences), then whole inputs, then every element in turn; the candidates of one
    step are evaluated in one batch. `point` holds one point, [1, *shape].
    """
    for _ in range(_PASSES):
        before = {name: t.clone() for name, t in point.items()}
        point = _alike(box, point, objects)
        point = _round_shared(box, point, objects)
        for name, domain in box.domains.items():
            if domain.kind in ("mask", "choice"):
                continue
            point = _fill(box, point, name, objects)
            if point[name].numel() <= _MOST_ELEMENTS:
                for element in range(point[name].numel()):
                    point = _round(box, point, name, element, objects)
        if all(torch.equal(before[name], t) for name, t in point.items()):
            break
    return point


def rounder(value: float, low: float, high: float) -> list[float]:
    """List the values in [low, high] that are rounder than `value`, the roundest first."""
    candidates = [0.0, 1.0, -1.0, 2.0, -2.0, low, high, (low + high) / 2]
    if value and abs(value) != torch.inf and value == value:
        exponent = floor(log10(abs(value)))
        candidates += [round(value, digits - exponent) for digits in (0, 1, 2)]
        candidates += [float(floor(value)), float(floor(value) + 1)]
        candidates += [round(value, digits) for digits in (1, 2)]
    inside = {c + 0.0 for c in candidates if low <= c <= high}
    simpler = [c for c in inside if _complexity(c) < _complexity(value)]
    return sorted(simpler, key=_complexity)


def _complexity(value: float) -> tuple[int, float, bool]:
    """Order numbers as people do: few digits first, then small ones, then positive ones."""
    digits = f"{abs(value):.6g}"
    return (0 if value == 0 else len(digits.replace(".0", "")), abs(value), value < 0)


def _alike(box: Box, point: Points, objects: Objects) -> Points:
    """Give every real element of every input the same round value."""
    reals = [name for name, domain in box.domains.items() if domain.kind == "real"]
    low = max(box.span(name)[0] for name in reals)
    high = min(box.span(name)[1] for name in reals)
    fills = [value for value in (0.0, 1.0, -1.0) if low <= value <= high]
    different = [v for v in fills if any(bool((point[name] != v).any()) for name in reals)]
    candidates = [
        {**point, **{name: torch.full_like(point[name], value) for name in reals}}
        for value in different
    ]
    return _first(point, candidates, objects)


def _round_shared(box: Box, point: Points, objects: Objects) -> Points:
    """Round each number that stands in two inputs or more in all its places at once."""
    reals = [name for name, domain in box.domains.items() if domain.kind == "real"]
    inside = [{float(v) for v in point[name].flatten()} for name in reals]
    for value in sorted({v for a, b in combinations(inside, 2) for v in a & b}):
        homes = [name for name in reals if bool((point[name] == value).any())]
        low = max(box.span(name)[0] for name in homes)
        high = min(box.span(name)[1] for name in homes)
        candidates = [
            {**point, **{n: torch.where(point[n] == value, simpler, point[n]) for n in homes}}
            for simpler in rounder(value, low, high)
        ]
        point = _first(point, candidates, objects)
    return point


def _simpler(box: Box, name: str, value: float) -> list[float]:
    """List the values of an input's domain that are rounder than one of them."""
    low, high = box.span(name)
    values = rounder(value, low, high)
    if box.domains[name].kind == "bins":
        step = (high - low) / (box.domains[name].count - 1)
        values = [low + step * round((v - low) / step) for v in values]
    return values


def _fill(box: Box, point: Points, name: str, objects: Objects) -> Points:
    """Fill a whole input with the roundest value that keeps the objection."""
    rows = point[name]
    if rows.numel() < 2:
        return point
    values = _simpler(box, name, float(rows.flatten()[0]))
    fills = [value for value in values if not bool((rows == value).all())]
    candidates = [{**point, name: torch.full_like(rows, value)} for value in fills]
    return _first(point, candidates, objects)


def _round(box: Box, point: Points, name: str, element: int, objects: Objects) -> Points:
    """Give one element the roundest value that keeps the objection."""
    value = float(point[name].flatten()[element])
    candidates = []
    for simpler in _simpler(box, name, value):
        rows = point[name].clone()
        rows.view(-1)[element] = simpler
        candidates.append({**point, name: rows})
    return _first(point, candidates, objects)


def _first(point: Points, candidates: list[Points], objects: Objects) -> Points:
    """Return the first candidate that keeps the objection, or the point itself."""
    if not candidates:
        return point
    batch = {name: torch.cat([candidate[name] for candidate in candidates]) for name in point}
    # Where a candidate takes away what is measured there is nothing to object to: a shorter list.
    for candidate, holds in zip(candidates, objects(batch), strict=False):
        if holds:
            return candidate
    return point
