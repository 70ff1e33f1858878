"""
Evaluate one loss at many points in as few calls as its nature allows.

A point is one whole call: `[b, T, K]` with a batch of `b`. Where the samples of a batch do not
influence one another, thousands of points with b = 1 are one big batch, and one backward pass
gives all their gradients. Which of these holds is found out by `independence`; nothing is assumed.
"""

from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from trainguard.observe.loss.call import LossCase, check_attached
from trainguard.observe.tools.points import Box, Points
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss

_ELEMENTS_PER_CALL = 1 << 19
_LOOPED = 64
_LARGEST_LOOPED = 4096
_LARGEST = 65536


class Mode(Enum):
    """How many points become one call."""

    ROWS = "one loss per sample is returned"
    SUM = "the returned number is the sum over the samples"
    MEAN = "the returned number is the mean over the samples"
    VMAP = "samples are coupled, or there is no batch: torch.func.vmap over points"
    LOOP = "the loss cannot be vectorised: one call per point"


@dataclass
class Evaluator:
    """One component over the box of its inputs, with the cheapest sound way to evaluate it."""

    component: LossCase
    box: Box
    mode: Mode
    vectorises: bool

    @property
    def loss(self) -> Loss:
        """The declared subject."""
        return self.component.loss

    @property
    def differentiable(self) -> list[str]:
        """The inputs that a gradient is asked of."""
        return [name for name, domain in self.box.domains.items() if domain.grad]

    @property
    def batch(self) -> int:
        """How many points one round holds: fewer for large points, few where Python loops."""
        if self.mode is Mode.LOOP:
            return _LOOPED
        room = max(_ELEMENTS_PER_CALL // max(self.box.elements, 1), 64)
        # Where a sum is not finite, each of its values may take a call of its own.
        largest = _LARGEST_LOOPED if self.loops else _LARGEST
        return int(min(largest, 1 << (room.bit_length() - 1)))

    @property
    def loops(self) -> bool:
        """Whether the loss of each single point takes a Python call of its own."""
        return self.mode is not Mode.ROWS and not self.vectorises

    @property
    def is_joined(self) -> bool:
        """Whether only the sum of a batch's losses is known, so that samples could have mixed."""
        return self.mode in (Mode.SUM, Mode.MEAN)

    def alone(self) -> "Evaluator":
        """Return an evaluator of the same component that calls it once for each point."""
        return replace(self, mode=Mode.LOOP, vectorises=False)

    def apart(self) -> "Evaluator":
        """Return an evaluator that keeps the points apart, vectorised where that is possible."""
        return replace(self, mode=Mode.VMAP if self.vectorises else Mode.LOOP)

    def values(self, points: Points) -> Tensor:
        """Return the loss at each point, [N]."""
        if self.mode is Mode.ROWS:
            return self._rows(self.flatten(points), count(points)).detach()
        return self.each(points).detach()

    def gradients(self, points: Points, *, each: bool = False) -> tuple[Points, Tensor]:
        """
        Return the gradients {input: [N, *shape]} and the values [N].

        Where only the sum of the values is known and it is finite, so is each of them, and unless
        `each` is asked for, the average stands for them all. Inputs that the loss does not depend
        on have a gradient of zero.
        """
        leaves = {
            name: t.detach().requires_grad_() if name in self.differentiable else t
            for name, t in points.items()
        }
        values, total = self._totals(leaves, each)
        wanted = [leaves[name] for name in self.differentiable]
        found = torch.autograd.grad(check_attached(total), wanted, allow_unused=True)
        gradients = {
            name: torch.zeros_like(points[name]) if gradient is None else gradient
            for name, gradient in zip(self.differentiable, found, strict=True)
        }
        if values is None:
            size = count(points)
            finite = bool(total.isfinite())
            values = (total / size).expand(size) if finite else self.each(points)
        return gradients, values.detach()

    def single(self, points: Points, index: int, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the tensors of one point, as they are passed to one call."""
        return {
            name: (
                t[index].detach().clone().requires_grad_()
                if grad and name in self.differentiable
                else t[index]
            )
            for name, t in points.items()
        }

    def _totals(self, leaves: Points, each: bool) -> tuple[Tensor | None, Tensor]:
        """Return the values where they are known, and a number whose gradient is every point's."""
        size = count(leaves)
        if self.mode in (Mode.SUM, Mode.MEAN) and not each:
            total = self.component.total(self.flatten(leaves))
            # The mean over the batch divides every sample's gradient by the batch: undo it.
            return None, total * size if self.mode is Mode.MEAN else total
        values = (
            self._rows(self.flatten(leaves), size) if self.mode is Mode.ROWS else self.each(leaves)
        )
        return values, values.sum()

    def each(self, points: Points) -> Tensor:
        """Return the loss at each point through a vectorised map, or else a loop; [N]."""
        if self.vectorises:
            call = torch.func.vmap(self._alone, randomness="same")
            return torch.as_tensor(call(points))
        singles = ({name: t[i] for name, t in points.items()} for i in range(count(points)))
        return torch.stack([self._alone(point) for point in singles])

    def _alone(self, point: Points) -> Tensor:
        """Return the loss at one point."""
        return self.component.total(point).sum()

    def _rows(self, tensors: Points, size: int) -> Tensor:
        """Return the loss at each point from a loss that keeps its samples apart; [N]."""
        return self.component.total(tensors).reshape(size, -1).sum(1)

    def flatten(self, points: Points) -> Points:
        """Join points and batch into one batch axis: [N, T, b, C] becomes [T, N * b, C]."""
        joined = {}
        for name, t in points.items():
            axis = (self.box.domains[name].shape or ()).index(BATCH)
            joined[name] = t.movedim(0, axis).flatten(axis, axis + 1)
        return joined


def count(points: Points) -> int:
    """Return the number of points in a batch of them."""
    return len(next(iter(points.values())))
