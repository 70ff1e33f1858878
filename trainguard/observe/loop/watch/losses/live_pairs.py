"""Watches losses of nothing but agreement, both sides of which learn: how alike samples become."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_NODES = 64  # between a loss and the pairs that it compares
_FEWEST = 8  # samples, whose rows may be alike by chance where there are fewer
_NARROWEST = 4  # numbers of a row: on a circle all samples of a few classes may be near
_LARGEST = 2**20  # elements of a side
_ONE = 1e-3  # that the norm of a row differs from one at most: half precision makes as much
_SIDES = {"MulBackward": "other"}  # and what its second input is
_SUMS = {
    *("AddBackward", "DivBackward", "MeanBackward", "MulBackward", "NegBackward", "RsubBackward"),
    *("SubBackward", "SumBackward", *autograd_graph.SAME),
}

_DISTANCES = {"MseLoss", "SmoothL1Loss", "HuberLoss"}
_LEAF = "AccumulateGrad"

Pair = tuple[torch.Tensor, torch.Tensor]


class LivePairs(Watcher):
    """
    The Probe event "agreement": the mean cosine between samples, of a loss that brings views near.

    Every loss of the run that is looked at is a sum of cosines, or of squared distances between
    rows of length one, and of nothing else; and all of these have a gradient on both sides.

    And "shrinking": how far samples are apart on the side of such distances where they are so the
    most, in times of what it was at first, where rows have any length.
    """

    makes = ("Probe:agreement", "Probe:shrinking")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._others = False  # whether some loss is more than that
        self._cosines: list[float] = []
        self._spreads: list[float] = []
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what a loss compares, as long as it compares nothing but pairs."""
        if self._others:
            return
        pairs: list[Pair] = []
        with suppress(RuntimeError):  # what was changed since cannot be read
            pairs = _pairs_of(loss)
        self._others = not pairs
        if pairs:
            self.looked.add("agreement")
            self._source = self._source or caller()
            sides = [side for pair in pairs for side in pair]
            self._spreads.append(max(float(side.detach().float().std(0).norm()) for side in sides))
            if all(map(_has_unit_rows, sides)):
                self._cosines.append(min(map(_cosine_between, sides)))

    def finish(self) -> Iterable[Event]:
        """Return how alike samples were at the last look, and at the first."""
        if self._others or not self._spreads:
            return
        looks, source = len(self._spreads), self._source
        if len(self._cosines) == looks:
            first, last = self._cosines[0], self._cosines[-1]
            yield make_probe("agreement", last, first, step=looks, source=source)
        elif self._spreads[0] > 0:
            share = self._spreads[-1] / self._spreads[0]
            yield make_probe("shrinking", share, 1, step=looks, source=source)


def _pairs_of(loss: torch.Tensor) -> list[Pair]:
    """Return the pairs that a loss is made of; none where it is made of anything else."""
    pairs: list[Pair] = []
    waiting, seen = [loss.grad_fn], 0
    while waiting:
        node, seen = waiting.pop(), seen + 1
        if node is None:
            continue
        pair = _pair_at(node)
        if pair is not None:
            pairs.append(pair)
        elif seen > _NODES or autograd_graph.kind_of(node) not in _SUMS:
            return []
        else:
            waiting += [before for before, _ in node.next_functions]
    return pairs


def _pair_at(node: Node) -> Pair | None:
    """Return the two sides that an operation compares, both of which learn."""
    kind = autograd_graph.kind_of(node)
    distance = kind.removesuffix("Backward") in _DISTANCES
    second = "target" if distance else _SIDES.get(kind)
    before = [below for below, _ in node.next_functions]
    if second is None or None in before:
        return None
    one, other = (autograd_graph.saved(node, name) for name in ("self", second))
    if one is None or other is None or one.shape != other.shape:
        return None
    if _has_unit_rows(one) and _has_unit_rows(other):
        return one, other
    made = not any(autograd_graph.kind_of(each) == _LEAF for each in before)
    return (one, other) if distance and made and _can_be_read(one) else None


def _can_be_read(side: torch.Tensor) -> bool:
    """Say whether a side has enough rows to tell how far samples are apart."""
    return side.is_cpu and side.dim() > 1 and len(side) >= _FEWEST and side.numel() <= _LARGEST


def _has_unit_rows(side: torch.Tensor) -> bool:
    """Say whether each row of a table has a norm of one."""
    if side.dim() != 2 or not side.is_cpu or not 0 < side.numel() <= _LARGEST:
        return False
    rows, width = side.shape
    if rows < _FEWEST or width < _NARROWEST:
        return False
    return bool(((side.detach().float().norm(dim=1) - 1).abs() <= _ONE).all())


def _cosine_between(side: torch.Tensor) -> float:
    """Return the mean cosine between two different rows of length one."""
    rows = len(side)
    return (float(side.detach().double().sum(0).square().sum()) - rows) / (rows * (rows - 1))
