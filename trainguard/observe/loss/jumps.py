"""The probe `line`: jumps of the loss along lines parallel to the axes of its inputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points

_GRID = 33
_OFF_CENTRE = 0.137  # of a cell: sign(x) has a value of its own at 0, which looks like two jumps
_HALVINGS = 34
_SIDE = 4
_MOST_ELEMENTS = 4


def line(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how far the loss jumps along a line through each point, for every input.

    "jump": the change of the loss between two neighbouring numbers; its `scale` is how much the
    loss moves on either side over several such distances (slope and rounding), and the point is
    moved to where the jump is. A line is parallel to an axis: one element moves, the rest stays.
    """
    for name in made.differentiable:
        count = min(points[name][0].numel(), _MOST_ELEMENTS)
        lines = Lines(made, points, name, count)
        at = lines.closed_in()
        ends, _ = lines.along(at)
        jump = (ends[:, 1] - ends[:, 0]).abs().nan_to_num(nan=0.0, posinf=0.0)
        smooth = lines.beside(at)
        badness, element = (jump - 10 * smooth).view(-1, count).max(1)
        row = torch.arange(len(element)) * count + element
        place = {other: t[row] for other, t in lines.move_to(at[:, 1]).items()}
        yield (
            Key("jump", name),
            Measured(jump[row], badness, ends[row, 0], smooth[row], element, points=place),
        )


@dataclass
class Lines:
    """One line for each point and each of the first elements of an input: row p * count + e."""

    made: Evaluator
    points: Points
    name: str
    count: int

    def closed_in(self) -> Tensor:
        """Return the two ends of the shortest interval around each line's largest jump, [L, 2]."""
        low, high = self.made.box.span(self.name)
        grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
        grid[1:-1] += _OFF_CENTRE * (grid[1] - grid[0])
        grid = grid.to(self.points[self.name])
        at = grid.expand(len(self.points[self.name]) * self.count, _GRID)
        values, slopes = self.along(at)
        at, values, slopes = _keep_worst(at, values, slopes)
        for _ in range(_HALVINGS):
            middle = at.mean(1, keepdim=True)
            inner = (middle, *self.along(middle))
            three = [torch.cat([end[:, :1], mid, end[:, 1:]], 1)
                     for end, mid in zip((at, values, slopes), inner, strict=True)]  # fmt: skip
            at, values, slopes = _keep_worst(*three)
        return at

    def along(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its slope at several places of each line, both [L, P]."""
        lines, count = places.shape
        many = self.move_to(places.flatten(), repeat=count)
        gradients, values = self.made.gradients(many, each=True)
        element = torch.arange(self.count).repeat(lines // self.count).repeat_interleave(count)
        slopes = gradients[self.name].flatten(1).gather(1, element.unsqueeze(1)).squeeze(1)
        return values.view(lines, count), slopes.view(lines, count).nan_to_num(nan=0.0)

    def beside(self, at: Tensor) -> Tensor:
        """
        Return how much the loss moves on both sides of each interval, [L].

        Near by and up to ten thousand widths away: where rounding makes the loss a staircase, its
        next steps are far from here at the scale of two neighbouring numbers.
        """
        width = (at[:, 1:] - at[:, :1]).abs()
        steps = torch.logspace(0, _SIDE, _SIDE + 1).to(at) - 1
        low, high = self.made.box.span(self.name)
        spread = torch.zeros(len(at)).to(at)
        for places in (at[:, :1] - width * steps, at[:, 1:] + width * steps):
            values, _ = self.along(places.clamp(low, high))
            spread = spread + (values.amax(1) - values.amin(1)).nan_to_num(nan=torch.inf)
        return spread

    def move_to(self, places: Tensor, repeat: int = 1) -> Points:
        """Return the points, once for each line and place, with the line's element moved there."""
        many = {
            name: t.repeat_interleave(self.count * repeat, 0) for name, t in self.points.items()
        }
        lines = len(places) // repeat
        element = torch.arange(self.count).repeat(lines // self.count).repeat_interleave(repeat)
        many[self.name].view(len(places), -1).scatter_(1, element.unsqueeze(1), places.unsqueeze(1))
        return many


def _keep_worst(at: Tensor, values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keep of each line the interval whose change its two slopes explain least."""
    step = at[:, 1:] - at[:, :-1]
    predicted = step * (slopes[:, 1:] + slopes[:, :-1]) / 2
    unexplained = (values[:, 1:] - values[:, :-1] - predicted).abs()
    left = unexplained.nan_to_num(nan=0.0, posinf=0.0).argmax(1, keepdim=True)
    keep = torch.cat([left, left + 1], 1)
    return at.gather(1, keep), values.gather(1, keep), slopes.gather(1, keep)
