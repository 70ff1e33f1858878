"""Watches tables of similarities: whether what is multiplied was normalised along the same axis."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**20  # elements of what is multiplied
_FEWEST = 8  # samples: a norm of fewer may be one by chance
_ONE = 1e-3  # that a norm differs from one at most
_PRODUCTS = {"MmBackward", "BmmBackward"}
_VIEWS = {
    *autograd_graph.SAME,
    *("ExpandBackward", "SelectBackward", "SliceBackward", "SplitBackward", "TBackward"),
    *("UnbindBackward", "IndexBackward"),
}


class Cosines(Watcher):
    """
    The Probe event "cosines": products of two tables, each normalised over the other axis.

    Or of two views of (N, K) that were normalised together, element by element.
    """

    makes = ("Probe:cosines",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._steps = self._wrong = 0
        self._source = self._label = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the products that a loss is made of."""
        if loss.grad_fn is None or not loss.is_cpu or self.recorder.age not in _STEPS:
            return  # elsewhere each norm would be waited for
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        products = [n for n in nodes if autograd_graph.kind_of(n) in _PRODUCTS and _is_of_two(n)]
        if len(nodes) >= _MOST_NODES or not products:
            return
        self.looked.add("cosines")
        self._steps += 1
        with torch.no_grad():
            found = next((shape for node in products if (shape := _wrong_shape(node))), "")
        if found:
            self._wrong += 1
            self._label, self._source = found, self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._wrong:
            yield make_probe(
                "cosines", self._wrong, self._steps, label=self._label, source=self._source
            )


def _is_of_two(node: Node) -> bool:
    """Say whether a product is of two tables that were made, and of no parameter."""
    for before, _ in node.next_functions:
        while before is not None and autograd_graph.kind_of(before) in {
            *autograd_graph.SAME,
            "TBackward",
        }:
            before = before.next_functions[0][0]
        if before is None or hasattr(before, "variable"):
            return False
    return True


def _wrong_shape(node: Node) -> str:
    """
    Return the shape of (N, K) where it and (K, M) have norms of one over N and M, not over K.

    Or "two views of (N,K)" where the two have such norms together, as (N, 2, K) along its middle.
    """
    with suppress(RuntimeError):  # what was changed since cannot be read
        first, second = (autograd_graph.saved(node, name) for name in ("self", "mat2"))
        if first is None or second is None or first.numel() > _LARGEST:
            return ""
        if first.dim() == 3 and len(first) == len(second) == 1:  # as einsum makes them
            first, second = first[0], second[0]
        if first.dim() != 2:
            return ""
        shape = f"({first.shape[0]},{first.shape[1]})"
        if all(map(_is_of_the_batch, (first, second.mT))):
            return shape
        if _are_of_each_other(first, second.mT) and all(map(_is_quotient, node.next_functions)):
            return f"two views of {shape}"
    return ""


def _are_of_each_other(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether the squares of two tables add up to one in each place."""
    if first.shape != second.shape or first.shape[0] < _FEWEST or not first.is_floating_point():
        return False
    total = first.float().square() + second.float().square()
    return first.shape[1] > 2 and float((total - 1).abs().max()) <= _ONE


def _is_quotient(edge: tuple[Node | None, int]) -> bool:
    """Say whether something is a part of a quotient, as sines and cosines of an angle are not."""
    node = edge[0]
    while node is not None and autograd_graph.kind_of(node) in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and autograd_graph.kind_of(node) == "DivBackward"


def _is_of_the_batch(table: torch.Tensor) -> bool:
    """Say whether each column of (N, K) has a norm of one and rows have not; no orthogonal ones."""
    rows, columns = table.shape
    if rows < _FEWEST or columns < 2 or rows == columns or not table.is_floating_point():
        return False
    own = table.float()
    over_batch, over_columns = own.norm(dim=0), own.norm(dim=1)
    if float((over_batch - 1).abs().max()) > _ONE or float((over_columns - 1).abs().max()) < _ONE:
        return False
    apart = own.mT @ own - torch.eye(columns)
    return float(apart.abs().max()) > _ONE
