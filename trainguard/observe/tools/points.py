"""
Draw many points of declared inputs in one go.

A batch of points is {input: tensor [N, *shape]}.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Generator, Tensor

from trainguard.subjects.domain import Domain

Points = dict[str, Tensor]
_PLAIN_SEED = 20
_SHARES = 16
_MOST_PAIRS = 12


@dataclass(frozen=True)
class Box:
    """The inputs of one structure: domains, sizes of dimensions, dtype and device."""

    domains: Mapping[str, Domain]
    sizes: Mapping[str, int]
    dtype: torch.dtype
    device: str

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one input at one point."""
        return self.domains[name].dims(self.sizes)

    def span(self, name: str) -> tuple[float, float]:
        """Return the range of one input, its ends rounded inwards to numbers of this dtype."""
        low, high = self.domains[name].span(self.sizes)
        if self.domains[name].kind != "real":
            return low, high
        inner = _towards(low, high, self.dtype), _towards(high, low, self.dtype)
        return inner if inner[0] <= inner[1] else (low, high)

    @property
    def elements(self) -> int:
        """The number of elements of all inputs at one point."""
        return sum(torch.Size(self.shape(name)).numel() for name in self.domains)

    @property
    def draw_dtype(self) -> torch.dtype:
        """The dtype that numbers are drawn in: the box's own, and float32 for a lower one."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def cast(self, points: Points) -> Points:
        """Bring drawn points into this box's dtype and device."""
        return {
            name: t.to(self.device, self.dtype if t.is_floating_point() else t.dtype)
            for name, t in points.items()
        }


def uniform(box: Box, count: int, generator: Generator) -> Points:
    """Draw every element uniformly over its domain."""
    return box.cast({name: _uniform(box, name, count, generator) for name in box.domains})


def plain(box: Box) -> Points:
    """Draw one point, [*shape], of numbers that are no ends of their ranges and have few digits."""
    points = uniform(box, 1, Generator().manual_seed(_PLAIN_SEED))
    for name, domain in box.domains.items():
        if domain.kind == "real":
            low, high = box.span(name)
            share = (points[name].double() - low) / (high - low)
            points[name] = low + (high - low) * (100 * share).round().clamp(1, 99) / 100
    return {name: t[0] for name, t in box.cast(points).items()}


def around(box: Box, elites: Points, count: int, generator: Generator) -> Points:
    """Draw points near the worst ones so far: crossed with one another, and moved a little."""
    pick = torch.randint(0, len(next(iter(elites.values()))), (2, count), generator=generator)
    reach = 10 ** (-4 + 4 * torch.rand(count, generator=generator, dtype=box.draw_dtype))
    points = {}
    for name, domain in box.domains.items():
        pool = elites[name].cpu()
        pool = pool.to(box.draw_dtype) if pool.is_floating_point() else pool
        rows, mates = pool[pick[0]], pool[pick[1]]
        # One draw serves both: below 0.2 an element is crossed, above 0.5 it is moved.
        drawn = torch.rand(rows.shape, generator=generator, dtype=box.draw_dtype)
        rows = torch.where(drawn < 0.2, mates, rows)
        if domain.kind == "real":
            low, high = box.span(name)
            step = reach.view(-1, *[1] * (rows.ndim - 1)) * (high - low)
            shift = (4 * drawn - 3) * step
            rows = torch.where(drawn > 0.5, rows + shift, rows).clamp(low, high)
        points[name] = rows
    return box.cast(points)


def _uniform(box: Box, name: str, count: int, generator: Generator) -> Tensor:
    """Draw one input uniformly over its domain."""
    domain, shape = box.domains[name], (count, *box.shape(name))
    if domain.kind == "choice":
        values = torch.tensor(domain.values)
        chosen = values[torch.randint(0, len(values), shape, generator=generator)]
        return chosen.to(box.draw_dtype) if chosen.is_floating_point() else chosen
    if domain.kind == "mask":
        return _mask(domain, shape, generator)
    low, high = box.span(name)
    if domain.kind == "integer":
        return torch.randint(int(low), int(high) + 1, shape, generator=generator)
    if domain.kind == "bins":
        index = torch.randint(0, domain.count, shape, generator=generator).double()
        share = index / (domain.count - 1)
        return (low * (1 - share) + high * share).to(box.draw_dtype)
    drawn = torch.rand(shape, generator=generator, dtype=box.draw_dtype)
    return (low + (high - low) * drawn).clamp_(low, high)


def _towards(end: float, other: float, dtype: torch.dtype) -> float:
    """Return the number of a dtype that is nearest to one end of a range and inside the range."""
    nearest = torch.tensor(end, dtype=dtype)
    # Compared, not multiplied: of numbers near zero the product is zero, whatever their signs.
    if float(nearest) < end < other or float(nearest) > end > other:
        nearest = nearest.nextafter(torch.tensor(other, dtype=dtype))
    return float(nearest)


def _mask(domain: Domain, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw masks that keep a prefix of the last dimension, at least one position of it."""
    length = shape[-1]
    kept = torch.randint(1, length + 1, (*shape[:-1], 1), generator=generator)
    keep, padding = domain.values
    values = torch.tensor([padding, keep])
    values = values.double() if values.is_floating_point() else values
    return values[(torch.arange(length) < kept).long()]


def coin(shape: tuple[int, ...] | torch.Size, chance: float, generator: Generator) -> Tensor:
    """Throw a biased coin for every element of a shape."""
    return torch.rand(shape, generator=generator) < chance


Kind = Callable[[Box, Points, Generator], Points]


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
