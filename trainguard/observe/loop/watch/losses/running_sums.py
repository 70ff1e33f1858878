"""Watches losses with a running sum over the samples of a batch: whether these are in an order."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.losses.written_losses import pass_of
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.owners import named_tensors
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_LEAST, _LARGEST = 8, 2**16  # samples
_BETWEEN = 16  # operations from a running sum to the module that made the scores
_SUMS = {"CumsumBackward", "LogcumsumexpBackward"}
_THROUGH = autograd_graph.SAME | {"AddBackward", "ExpBackward", "SubBackward", "MulBackward"}


class RunningSums(Watcher):
    """
    The Probe event "running sum": logarithms of running sums over samples that are in no order.

    Of one score for each sample, as a module returned it, in the order of the batch. measured:
    losses beside which nothing with a number for each sample rises or falls all the way, as it is
    or in an order that is there too; reference: losses with such a sum.
    """

    makes = ("Probe:running sum",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._loose = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for running sums in the graph of a loss."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        found = [rows for node in nodes if (rows := _count_compared(node))]
        if not found or len(nodes) >= _MOST_NODES:
            return
        with torch.no_grad():
            ordered = _has_order(found[0])
        if ordered is None:
            return
        self.looked.add("running sum")
        self._looks += 1
        if not ordered:
            self._loose += 1
            self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        if self._loose:
            yield make_probe("running sum", self._loose, self._looks, source=self._source)


def _count_compared(node: Node) -> int:
    """Return over how many samples scores are compared with running sums of them, or 0."""
    if kind_of(node) not in ("SubBackward", "RsubBackward"):
        return 0
    both = [_before_shapes(before) for before, _ in node.next_functions if before is not None]
    if len(both) != 2 or not any(map(pass_of, both)):
        return 0
    return max(map(_count_summed, both))


def _before_shapes(node: Node) -> Node:
    """Return what made numbers, or what a module returned, before their shape was changed."""
    while kind_of(node) in autograd_graph.SAME and pass_of(node) is None:
        node = node.next_functions[0][0]
    return node


def _count_summed(node: Node | None) -> int:
    """Return over how many samples something is a logarithm of running sums, or 0."""
    if node is not None and kind_of(node) == "LogBackward":
        node = _before_constant(node.next_functions[0][0])
    if node is None or kind_of(node) not in _SUMS:
        return 0
    shape = autograd_graph.shape_made(node)
    rows = torch.Size(shape).numel()
    if len(shape) not in (1, 2) or shape[0] != rows or not _LEAST <= rows <= _LARGEST:
        return 0
    if autograd_graph.signed(node._saved_dim) % len(shape):  # noqa: SLF001 torch names it so
        return 0
    exponential = kind_of(node) == "LogcumsumexpBackward"
    for _ in range(_BETWEEN):
        node = next((before for before, _ in node.next_functions if before is not None), None)
        if node is None or pass_of(node) is not None:
            return rows if node is not None and exponential else 0
        exponential = exponential or kind_of(node) == "ExpBackward"
        if kind_of(node) not in _THROUGH:
            return 0
    return 0


def _before_constant(node: Node | None) -> Node | None:
    """Return what a logarithm is of, but for a small constant."""
    if node is not None and kind_of(node) == "AddBackward":
        return next((before for before, _ in node.next_functions if before is not None), None)
    return node


def _has_order(rows: int) -> bool | None:
    """
    Say whether a variable with a number for each sample rises or falls, perhaps in an order.

    None where no variable has different numbers for them, as times are.
    """
    columns = [held.detach().reshape(-1) for held in _columns()]
    places = [each for each in columns if each.dtype == torch.long and len(each) == rows]
    numbers = [each for each in columns if each.is_floating_point()]
    own = [each for each in numbers if len(each) == rows]
    own += [each[p] for p in places for each in numbers if _are_inside(p, len(each))]
    own = [each for each in own if len(set(each.tolist())) > rows // 2]
    return any(map(_is_monotonic, own)) if own else None


def _columns() -> Iterator[torch.Tensor]:
    """Yield the user's tensors with a number for each sample, of a batch or of all."""
    for _, _, held in named_tensors():
        plain = type(held) is torch.Tensor and held.is_cpu and not held.requires_grad
        if plain and _LEAST <= held.numel() == held.shape[0] <= _LARGEST:
            yield held


def _are_inside(places: torch.Tensor, rows: int) -> bool:
    """Say whether numbers may be places among so many rows."""
    return int(places.min()) >= 0 and int(places.max()) < rows


def _is_monotonic(held: torch.Tensor) -> bool:
    """Say whether numbers rise, or fall, all the way."""
    steps = held.diff()
    return bool((steps >= 0).all() or (steps <= 0).all())
