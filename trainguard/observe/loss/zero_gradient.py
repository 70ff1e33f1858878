"""The probe `plateau`: places where the gradient is exactly zero although the loss could fall."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points, draw

_CANDIDATES, _LOOPED_CANDIDATES = 8, 1
_OTHERS, _LOOPED_OTHERS = 256, 32
_NEIGHBOURS = 4
_ASIDE = 0.05
_SCAN = 33
_FLAT = 1e-6


def plateau(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how much the loss would fall if a dead input were moved, zero where nothing is dead.

    "unreached": an input's largest gradient; bad where it is zero, so bad everywhere means that
        no gradient ever reaches the input.
    "plateau", label "whole": every gradient is zero at the point and around it.
    "plateau", label "input": one element's gradient is zero there, whatever the other inputs are.
    """
    gradients, values = made.gradients(points)
    flat = {name: gradient.flatten(1) for name, gradient in gradients.items()}
    for name, gradient in flat.items():
        largest = gradient.abs().nan_to_num(nan=torch.inf).amax(1)
        yield Key("unreached", name), Measured(largest, -largest, bad=largest == 0)
    dead = torch.stack([(gradient == 0).all(1) for gradient in flat.values()]).all(0)
    dead &= torch.stack([_promise_mask(made, points, name).any(1) for name in flat]).any(0)
    yield Key("plateau", label="whole"), _whole(made, points, dead, values)
    for name, gradient in flat.items():
        stuck = (gradient == 0) & _promise_mask(made, points, name) & ~dead.unsqueeze(1)
        yield Key("plateau", name, "input"), _elements(made, points, name, stuck, values)


def _whole(made: Evaluator, points: Points, dead: Tensor, values: Tensor) -> Measured:
    """Measure the points at which every gradient is zero."""
    gain, here = torch.zeros_like(values), values.clone()
    rows = _candidates(made, dead)
    if len(rows):
        here[rows] = _values(made, points, rows)
        near = _nearby(made, points, rows)
        flat = (_gradients(made, near) == 0).all(1).view(-1, _NEIGHBOURS).all(1)
        level = here[rows].unsqueeze(1)
        drift = (made.values(near).view(-1, _NEIGHBOURS) - level).abs()
        # A single point with a subgradient of zero has other values around it, a plateau has not.
        flat &= (drift <= _FLAT * (1 + level.abs())).all(1)
        moved = _redrawn(made, points, rows, made.differentiable)
        gain[rows] = torch.where(flat, _fall(made, here[rows], moved), 0.0)
    return Measured(gain, gain, reference=here, bad=dead)


def _elements(
    made: Evaluator, points: Points, name: str, stuck: Tensor, values: Tensor
) -> Measured:
    """Measure the points at which one element of one input has no gradient."""
    gain, here, at = torch.zeros_like(values), values.clone(), stuck.int().argmax(1)
    rows = _candidates(made, stuck.any(1))
    if len(rows):
        here[rows] = _values(made, points, rows)
        found = _Element(made, points, name, rows, at[rows])
        dead = found.always_dead()
        if bool(dead.any()):
            gain[rows] = torch.where(dead, found.fall(here[rows]), 0.0)
    return Measured(gain, gain, reference=here, coordinate=at, bad=stuck.any(1))


@dataclass
class _Element:
    """One element of one input at each of a few points, where its gradient is zero."""

    made: Evaluator
    points: Points
    name: str
    rows: Tensor
    at: Tensor

    def always_dead(self) -> Tensor:
        """Say for each point whether the gradient is zero near it, and for any draw of all else."""
        dead = self._dead(_nearby(self.made, self.points, self.rows), _NEIGHBOURS)
        if bool(dead.any()):
            count = _others(self.made)
            others = _redrawn(self.made, self.points, self.rows, list(self.made.box.domains))
            flat = others[self.name].view(len(self.rows), count, -1)
            flat.scatter_(2, self._index(count), self._moved_aside(count).unsqueeze(2))
            dead &= self._dead(others, count)
        return dead

    def fall(self, here: Tensor) -> Tensor:
        """Return how far the loss falls if the element moves, and 0 if it is dead everywhere."""
        scan = _copies(self.points, self.rows, _SCAN)
        low, high = self.made.box.span(self.name)
        places = torch.linspace(low, high, _SCAN).to(scan[self.name])
        flat = scan[self.name].view(len(self.rows), _SCAN, -1)
        flat.scatter_(2, self._index(_SCAN), places.expand(len(self.rows), _SCAN).unsqueeze(2))
        alive = ~self._dead(scan, _SCAN)
        return torch.where(alive, _fall(self.made, here, scan), 0.0)

    def _moved_aside(self, count: int) -> Tensor:
        """
        Return the element's value for each redraw, [rows, count]: as it is, and a bit to each side.

        At the very end of a range all other inputs lie on one side of it, which is no plateau.
        """
        low, high = self.made.box.span(self.name)
        kept = self.points[self.name][self.rows].flatten(1).gather(1, self.at.view(-1, 1))
        aside = torch.tensor([0.0, -_ASIDE, _ASIDE]).to(kept) * (high - low)
        return (kept + aside.repeat(count // 3 + 1)[:count]).clamp(low, high)

    def _dead(self, points: Points, count: int) -> Tensor:
        """Say for each row whether the element's gradient is zero in all its `count` copies."""
        gradients = _gradients(self.made, points, self.name).view(len(self.rows), count, -1)
        return (gradients.gather(2, self._index(count)) == 0).flatten(1).all(1)

    def _index(self, count: int) -> Tensor:
        """Return where the element stands in the copies of each row, [rows, copies, 1]."""
        return self.at.view(-1, 1, 1).expand(len(self.rows), count, 1)


def _promise_mask(made: Evaluator, points: Points, name: str) -> Tensor:
    """Say for each element of each point whether a gradient is promised there, [N, M]."""
    alive = made.box.domains[name].alive or made.box.span(name)
    flat = points[name].flatten(1)
    return (flat >= alive[0]) & (flat <= alive[1])


def _candidates(made: Evaluator, where: Tensor) -> Tensor:
    """Return a few of the rows at which something holds."""
    return where.nonzero().flatten()[: _LOOPED_CANDIDATES if made.loops else _CANDIDATES]


def _others(made: Evaluator) -> int:
    """Return how many redraws of the other inputs each candidate gets."""
    return _LOOPED_OTHERS if made.loops else _OTHERS


def _values(made: Evaluator, points: Points, rows: Tensor) -> Tensor:
    """Return the loss at some of the points."""
    return made.values({name: t[rows] for name, t in points.items()})


def _gradients(made: Evaluator, points: Points, name: str = "") -> Tensor:
    """Return the gradients of one input or of all, flat, [N, M]."""
    gradients, _ = made.gradients(points)
    chosen = [gradients[name]] if name else list(gradients.values())
    return torch.cat([gradient.flatten(1) for gradient in chosen], 1)


def _copies(points: Points, rows: Tensor, count: int) -> Points:
    """Return each of the rows several times in a row."""
    return {name: t[rows].repeat_interleave(count, 0) for name, t in points.items()}


def _nearby(made: Evaluator, points: Points, rows: Tensor) -> Points:
    """Return copies of the rows, each moved a little: a real plateau has an inside."""
    near, generator = _copies(points, rows, _NEIGHBOURS), Generator().manual_seed(0)
    for name, domain in made.box.domains.items():
        if domain.kind == "real":
            low, high = made.box.span(name)
            # The same few moves for every row: what is said of a point depends on it alone.
            noise = torch.randn((_NEIGHBOURS, *made.box.shape(name)), generator=generator)
            moves = 1e-3 * (high - low) * noise.to(near[name])
            near[name] = (near[name] + moves.repeat(len(rows), *[1] * (moves.ndim - 1))).clamp(
                low, high
            )
    return near


def _redrawn(made: Evaluator, points: Points, rows: Tensor, names: list[str]) -> Points:
    """Return copies of the rows with some of the inputs drawn anew, coincidences included."""
    count = _others(made)
    fresh = draw(made.box, count, Generator().manual_seed(0))
    same = _copies(points, rows, count)
    return {
        name: fresh[name].repeat(len(rows), *[1] * (t.ndim - 1)) if name in names else t
        for name, t in same.items()
    }


def _fall(made: Evaluator, here: Tensor, moved: Points) -> Tensor:
    """Return by how much the loss is lower at the best of each row's moved points, [rows]."""
    there = made.values(moved).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
    fall = here - there.view(len(here), -1).amin(1)
    return torch.where(fall.isfinite(), fall, 0.0)
