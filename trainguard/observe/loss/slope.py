"""The probes of the slope: autograd beside central differences, and jumps along lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from trainguard.core.errors import Unjudged
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points

_MOST_COMPARED = 16
_STEP = 5e-5
_SCALES = (1, 4, 16)
_GRID = 33
_OFF_CENTRE = 0.137  # of a cell: sign(x) has a value of its own at 0, which looks like two jumps
_HALVINGS = 34
_MOST_HALVINGS = 64  # in the order of floats: from anywhere, two numbers are neighbours after these
_RAMP = 0.1  # of a jump: where no two neighbours are so far apart, it is a ramp
_STEADY = 1e-6  # of the loss: a smaller change is no jump, however far apart its ends are
_SIDE = 4
_MOST_LINES = 4


def difference(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure each input's gradient against a difference of the loss, at its worst element.

    "difference": autograd's number; `reference` is the difference, `scale` how far the difference
    itself may be off: infinite where it does not settle, as at a kink or in noise. The label says
    whether a custom autograd.Function takes part ("custom") or only PyTorch's own operations.
    """
    if _is_coarse(made, points):
        raise Unjudged("the loss computes in float32 inside, too coarse for a difference")
    custom = _has_custom_backward(made, points)
    inner = _inside(made, points)
    aside = _inside(made, _aside(made, inner))
    for name in made.differentiable:
        off, slope, doubt, autograd = _compare(made, inner if custom else aside, name)
        if custom:  # what is wrong at one point and right beside it is a tie, not a wrong backward
            doubt = torch.where(_compare(made, aside, name)[0] > 0.1 * off, doubt, torch.inf)
        badness, at = (off - doubt).nan_to_num(nan=-torch.inf, neginf=-torch.inf).max(1)
        rows = at.unsqueeze(1)
        columns = (column.gather(1, rows).squeeze(1) for column in (autograd, slope, doubt))
        measured, reference, scale = columns
        key = Key("difference", name, "custom" if custom else "own")
        yield (
            key,
            Measured(measured, badness, reference, scale, at, points=inner if custom else aside),
        )


def _compare(made: Evaluator, points: Points, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return for each element of an input: the mismatch, difference, its doubt and autograd."""
    gradients, _ = made.gradients(points)
    flat = gradients[name].flatten(1)
    autograd = flat[:, :_MOST_COMPARED]
    found = [_slope(made, points, name, e, autograd) for e in range(autograd.shape[1])]
    slope = torch.stack([pair[0] for pair in found], 1)
    doubt = torch.stack([pair[1] for pair in found], 1)
    return (autograd - slope).abs(), slope, doubt, autograd


def _aside(made: Evaluator, points: Points) -> Points:
    """Move every real a little: where elements tie, autograd picks one of several slopes."""
    moved, generator = dict(points), Generator().manual_seed(0)
    for name, domain in made.box.domains.items():
        if domain.kind == "real":
            low, high = made.box.span(name)
            # The same move for every point: what is said of a point depends on it alone.
            noise = torch.randn(made.box.shape(name), generator=generator).to(points[name])
            moved[name] = (points[name] + 1e-3 * (high - low) * noise).clamp(low, high)
    return moved


def _inside(made: Evaluator, points: Points) -> Points:
    """Keep the points far enough from the ends of their ranges to take a step either way."""
    inner = dict(points)
    for name in made.differentiable:
        low, high = made.box.span(name)
        margin = 20 * _STEP * (high - low)
        inner[name] = points[name].clamp(low + margin, high - margin)
    return inner


def _slope(
    made: Evaluator, points: Points, name: str, element: int, autograd: Tensor
) -> tuple[Tensor, Tensor]:
    """
    Return the difference quotient of one element at each point, and how far it may be off.

    Three steps, each four times the last. A wrong gradient is off by the same amount at all of
    them; truncation grows with the step, rounding shrinks with it, and at a kink the bend stays.
    """
    low, high = made.box.span(name)
    steps = torch.tensor(_SCALES).to(points[name]) * _STEP * min(1.0, high - low)
    offsets = torch.cat([-steps, torch.zeros(1).to(steps), steps])
    many = {other: t.repeat_interleave(len(offsets), 0) for other, t in points.items()}
    many[name].flatten(1)[:, element] += offsets.repeat(len(points[name]))
    values = made.values(many).view(-1, len(offsets))
    count = len(steps)
    left, middle, right = values[:, :count], values[:, count : count + 1], values[:, count + 1 :]
    quotients = (right - left) / (2 * steps)
    bends = ((right - 2 * middle + left) / steps).abs()
    off = autograd[:, element : element + 1] - quotients
    spread = off.amax(1) - off.amin(1)
    kink = bends[:, 0] > 0.3 * bends[:, -1] + 1e-3 * off[:, 0].abs()
    slope = quotients[:, 0]
    settled = (spread <= 0.1 * off.abs().amin(1)) & (spread <= 0.1 * slope.abs() + 1e-4)
    unsettled = kink | ~settled
    return slope, torch.where(unsettled, torch.inf, spread)


def _is_coarse(made: Evaluator, points: Points) -> bool:
    """Say whether a part of the loss is computed in less than float64, although its inputs are."""
    watch = _Precision()
    with watch:
        made.component.total(made.single(points, 0, grad=True))
    return watch.coarse


class _Precision(TorchFunctionMode):
    """Watch whether any differentiable tensor of a call has less than float64's precision."""

    coarse = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function and look at what it returns."""
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, Tensor) and returned.requires_grad:
            self.coarse |= returned.dtype in (torch.float32, torch.bfloat16, torch.float16)
        return returned


def _has_custom_backward(made: Evaluator, points: Points) -> bool:
    """Say whether a custom autograd.Function is in the graph of the loss."""
    todo: list[Any] = [made.component.total(made.single(points, 0, grad=True)).grad_fn]
    seen = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        todo += [parent for parent, _ in node.next_functions]
    return False


def line(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure how far the loss jumps along a line through each point, for every input.

    "jump": the change of the loss between two neighbouring numbers; its `scale` is how much the
    loss moves on either side over several such distances (slope and rounding), and the point is
    moved to where the jump is. A line is parallel to an axis: one element moves, the rest stays.
    """
    for name in made.differentiable:
        count = min(points[name][0].numel(), _MOST_LINES)
        lines = Lines(made, points, name, count)
        at = lines.closed_in()
        ends, _ = lines.along(at)
        jump = (ends[:, 1] - ends[:, 0]).abs().nan_to_num(nan=0.0, posinf=0.0)
        least = lines.least_change(at)
        jump = torch.where(least < _RAMP * jump, least, jump)
        smooth = lines.beside(at)
        badness, element = (jump - 10 * smooth).view(-1, count).max(1)
        row = torch.arange(len(element), device=element.device) * count + element
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
        """Return the two ends of a short interval around each line's largest jump, [L, 2]."""
        low, high = self.made.box.span(self.name)
        grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
        grid[1:-1] += _OFF_CENTRE * (grid[1] - grid[0])
        grid = grid.to(self.points[self.name])
        at = grid.expand(len(self.points[self.name]) * self.count, _GRID)
        values, slopes = self.along(at)
        at, values, slopes = _keep_worst(at, values, slopes)
        for _ in range(_HALVINGS):
            at, values, slopes = self._halve(at, values, slopes, at.mean(1, keepdim=True))
        return at

    def least_change(self, at: Tensor) -> Tensor:
        """
        Return how far the loss jumps between two neighbouring numbers inside each interval, [L].

        The intervals are halved in the order of floats: near 0 there are ramps that are narrower
        than any width that would do elsewhere, such as that of a vector divided by its norm.
        """
        values, slopes = self.along(at)
        for _ in range(_MOST_HALVINGS):
            change = (values[:, 1] - values[:, 0]).abs()
            apart = torch.nextafter(at[:, 0], at[:, 1]) != at[:, 1]
            if not bool((apart & (change > _STEADY * (1 + values[:, 0].abs()))).any()):
                break
            at, values, slopes = self._halve(at, values, slopes, _between(at))
        return (values[:, 1] - values[:, 0]).abs().nan_to_num(nan=0.0, posinf=0.0)

    def _halve(
        self, at: Tensor, values: Tensor, slopes: Tensor, middle: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep of each interval that half in which the loss jumps."""
        inner = (middle, *self.along(middle))
        three = [torch.cat([end[:, :1], mid, end[:, 1:]], 1)
                 for end, mid in zip((at, values, slopes), inner, strict=True)]  # fmt: skip
        return _keep_worst(*three)

    def along(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and its slope at several places of each line, both [L, P]."""
        lines, count = places.shape
        many = self.move_to(places.flatten(), repeat=count)
        gradients, values = self.made.gradients(many, each=True)
        element = self._elements(lines, count)
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
        element = self._elements(lines, repeat)
        many[self.name].view(len(places), -1).scatter_(1, element.unsqueeze(1), places.unsqueeze(1))
        return many

    def _elements(self, lines: int, repeat: int) -> Tensor:
        """Return which element moves on each line, so many times each."""
        each = torch.arange(self.count, device=self.points[self.name].device)
        return each.repeat(lines // self.count).repeat_interleave(repeat)


def _keep_worst(at: Tensor, values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keep of each line the interval whose change its two slopes explain least."""
    step = at[:, 1:] - at[:, :-1]
    predicted = step * (slopes[:, 1:] + slopes[:, :-1]) / 2
    unexplained = (values[:, 1:] - values[:, :-1] - predicted).abs()
    left = unexplained.nan_to_num(nan=0.0, posinf=0.0).argmax(1, keepdim=True)
    keep = torch.cat([left, left + 1], 1)
    return at.gather(1, keep), values.gather(1, keep), slopes.gather(1, keep)


def _between(at: Tensor) -> Tensor:
    """Return the number in the middle of two, as floats are ordered: as many on either side."""
    kind = torch.int64 if at.element_size() == 8 else torch.int32
    least = torch.iinfo(kind).min
    words = at.contiguous().view(kind)
    order = torch.where(words < 0, least - words, words)
    middle = order[:, :1] + (order[:, 1:] - order[:, :1]).div(2, rounding_mode="floor")
    return torch.where(middle < 0, least - middle, middle).view(at.dtype)
