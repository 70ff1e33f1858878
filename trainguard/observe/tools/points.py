"""
Draw many points of declared inputs in one go.

A batch of points is {input: tensor [N, *shape]}.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from trainguard.subjects.domain import Domain

Points = dict[str, Tensor]

_PLAIN_SEED = 20


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
    if (float(nearest) - end) * (other - end) < 0:
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
