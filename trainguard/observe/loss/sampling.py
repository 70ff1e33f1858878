"""
Draw points where losses are known to break: a mixture of uniform points and special ones.

Edges of the ranges, special values, log-spaced magnitudes, ties (elements that share a value) and
coincidences (a target equal to a mean): failures live on such sets, and a uniform draw has no
chance to hit them. A kind turns uniform points into points of its own.
"""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Generator, Tensor

from trainguard.observe.tools.points import Box, Points, coin, uniform

Kind = Callable[[Box, Points, Generator], Points]
_SHARES = 16
_MOST_PAIRS = 12


def draw(box: Box, count: int, generator: Generator) -> Points:
    """Draw a mixture: half of the points uniform, the rest of the special kinds in equal parts."""
    points, start = uniform(box, count, generator), 0
    for kind, share in KINDS.items():
        end = min(start + max(count * share // _SHARES, 1), count)
        block = {name: rows[start:end] for name, rows in points.items()}
        for name, rows in kind(box, block, generator).items():
            points[name][start:end] = rows.to(points[name])
        start = end
    return points


def edges(box: Box, points: Points, generator: Generator) -> Points:
    """Put every element on one of the two ends of its range, or within a percent of it."""
    return _change_reals(box, points, lambda name, rows: _pick(
        _special_values(box, name)[:4], rows.shape, generator))  # fmt: skip


def fill_inputs(box: Box, points: Points, generator: Generator) -> Points:
    """Fill each input with one special value."""
    return _change_reals(box, points, lambda name, rows: _pick(
        _special_values(box, name), _one_each(rows), generator).expand_as(rows))  # fmt: skip


def log_spaced(box: Box, points: Points, generator: Generator) -> Points:
    """Draw magnitudes evenly over their logarithm, from 1e-9 of the range up to all of it."""

    def space(name: str, rows: Tensor) -> Tensor:
        low, high = box.span(name)
        exponents = -9 * torch.rand(rows.shape, generator=generator, dtype=box.draw_dtype)
        sign = torch.where(coin(rows.shape, 0.5, generator), 1.0, -1.0)
        return (max(abs(low), abs(high)) * 10**exponents * sign).clamp(low, high)

    return _change_reals(box, points, space)


def sprinkle(box: Box, points: Points, generator: Generator) -> Points:
    """Put single elements of otherwise uniform points on special values."""

    def some(name: str, rows: Tensor) -> Tensor:
        values = _pick(_special_values(box, name), rows.shape, generator)
        return torch.where(coin(rows.shape, 0.3, generator), values, rows.cpu().to(box.draw_dtype))

    return _change_reals(box, points, some)


def tie_axes(_box: Box, points: Points, _generator: Generator) -> Points:
    """Make all elements along an axis equal, each axis in turn: equal components, rows, classes."""
    out = {name: rows.clone() for name, rows in points.items()}
    for name, rows in points.items():
        for axis in range(1, rows.ndim):
            part = rows[axis - 1 :: rows.ndim - 1]
            out[name][axis - 1 :: rows.ndim - 1] = part.narrow(axis, 0, 1).expand_as(part)
    return out


def coincident(box: Box, points: Points, generator: Generator) -> Points:
    """Give one input the values of another, exactly or nearly, each pair of inputs in turn."""
    numeric = [name for name, domain in box.domains.items() if domain.kind in ("real", "bins")]
    pairs = [(source, target) for source, target in permutations(numeric, 2)
             if box.domains[target].kind == "real"][:_MOST_PAIRS]  # fmt: skip
    out = {name: rows.clone() for name, rows in points.items()}
    for start, (source, target) in enumerate(pairs):
        rows, taken = points[target][start :: len(pairs)], points[source][start :: len(pairs)]
        if taken.shape != rows.shape:
            taken = _one_element(taken, generator).view(_one_each(rows)).expand_as(rows)
        low, high = box.span(target)
        # Half of them exactly, half at distances from a ten-thousandth to a tenth of the range.
        reach = 10 ** (-4 + 3 * torch.rand(_one_each(rows), generator=generator))
        reach *= coin(_one_each(rows), 0.5, generator)
        noise = (high - low) * reach * torch.randn(rows.shape, generator=generator)
        out[target][start :: len(pairs)] = (taken + noise.to(rows)).clamp(low, high)
    return out


# The shares, in sixteenths, of the kinds that are not uniform.
KINDS: dict[Kind, int] = {
    edges: 1,
    fill_inputs: 1,
    log_spaced: 1,
    sprinkle: 2,
    tie_axes: 1,
    coincident: 2,
}


def _change_reals(box: Box, points: Points, change: Callable[[str, Tensor], Tensor]) -> Points:
    """Return points with every real input changed."""
    return {
        name: change(name, rows) if box.domains[name].kind == "real" else rows
        for name, rows in points.items()
    }


def _special_values(box: Box, name: str) -> Tensor:
    """List the values at which functions break: ends, near ends, zero, one, tiny numbers."""
    low, high = box.span(name)
    step = 0.01 * (high - low)
    near = [low, high, low + step, high - step, (low + high) / 2]
    values = [*near, 0.0, 1.0, -1.0, 0.5, 1e-3, -1e-3, 1e-8, -1e-8, 1e-30]
    return torch.tensor(values, dtype=box.draw_dtype).clamp(low, high)


def _pick(values: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Pick one of the values for every element of a shape."""
    return values[torch.randint(0, len(values), shape, generator=generator)]


def _one_each(rows: Tensor) -> tuple[int, ...]:
    """Return the shape that holds one number for each point."""
    return (len(rows), *[1] * (rows.ndim - 1))


def _one_element(rows: Tensor, generator: Generator) -> Tensor:
    """Pick one element of each point, [N, 1]."""
    flat = rows.flatten(1)
    index = torch.randint(0, flat.shape[1], (len(flat), 1), generator=generator)
    return flat.gather(1, index.to(flat.device))
