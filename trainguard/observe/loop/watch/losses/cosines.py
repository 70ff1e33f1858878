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
_NORMS = {"LinalgVectorNormBackward", "NormBackward", "SqrtBackward"}
_OF_NORMS = autograd_graph.SAME | {"AddBackward", "ClampMinBackward", "ExpandBackward"}


class Cosines(Watcher):
    """
    The Probe event "cosines": products of two tables, each normalised over the other axis.

    Or of two views of (N, K) that were normalised together, element by element. "cosines, perhaps"
    where it is so in each of several tables, or one of the two was normalised along the right axis.
    """

    makes = ("Probe:cosines", "Probe:cosines, perhaps")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._steps = self._wrong = 0
        self._source = self._label = ""
        self._sure = True

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
            told = [found for node in products if (found := _find_wrong(node))[0]]
        if told:
            self._wrong += 1
            self._label, self._sure = max(told, key=lambda found: found[1])
            self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._wrong:
            name = "cosines" if self._sure else "cosines, perhaps"
            told = {"label": self._label, "source": self._source}
            yield make_probe(name, self._wrong, self._steps, **told)


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


def _find_wrong(node: Node) -> tuple[str, bool]:
    """
    Return the shape of (N, K) where it and (K, M) are normalised over N and M; whether it is sure.

    Or "two views of (N,K)" where the two have such norms together, as (N, 2, K) along its middle.
    """
    with suppress(RuntimeError):  # what was changed since cannot be read
        first, second = (autograd_graph.saved(node, name) for name in ("self", "mat2"))
        if first is None or second is None or max(first.numel(), second.numel()) > _LARGEST:
            return "", False
        if first.dim() == 3 and len(first) == len(second) == 1:  # as einsum makes them
            first, second = first[0], second[0]
        if not first.is_floating_point() or not second.is_floating_point():
            return "", False
        tables = first.float(), second.mT.float()
        shape = f"({','.join(str(size) for size in first.shape)})"
        sides = [_side(*each) for each in zip(tables, node.next_functions, strict=False)]
        if "batch" in sides and set(sides) <= {"batch", "rows"}:
            return shape, first.dim() == 2 and "rows" not in sides
        alike = first.dim() == 2 and _are_of_each_other(*tables)
        if alike and all(map(_is_quotient, node.next_functions)):
            return f"two views of {shape}", True
    return "", False


def _are_of_each_other(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether the squares of two tables add up to one in each place."""
    if first.shape != second.shape or first.shape[0] < _FEWEST:
        return False
    total = first.square() + second.square()
    return first.shape[1] > 2 and float((total - 1).abs().max()) <= _ONE


def _is_quotient(edge: tuple[Node | None, int]) -> bool:
    """Say whether something is part of a quotient by a norm, as sines of an angle are not."""
    node = edge[0]
    while node is not None and (before := _keeps_directions(node)) is not None:
        node = before
    if node is None or autograd_graph.kind_of(node) != "DivBackward":
        return False
    divisor = node.next_functions[1][0]
    while divisor is not None and autograd_graph.kind_of(divisor) in _OF_NORMS:
        divisor = divisor.next_functions[0][0]
    return divisor is not None and autograd_graph.kind_of(divisor) in _NORMS


def _keeps_directions(node: Node) -> Node | None:
    """Return what a node views, or multiplies by one number, learned or not; else None."""
    edges, kind = [before for before, _ in node.next_functions], autograd_graph.kind_of(node)
    if kind in _VIEWS:
        return edges[0]
    if kind not in ("DivBackward", "MulBackward"):
        return None
    sizes = [each and torch.Size(autograd_graph.shape_made(each)).numel() for each in edges]
    large = [each for each, size in zip(edges, sizes, strict=True) if size and size > 1]
    return large[0] if len(large) == 1 and not (kind == "DivBackward" and not edges[0]) else None


def _side(table: torch.Tensor, edge: tuple[Node | None, int]) -> str:
    """
    Say whether the columns of (N, K) have one norm ("batch"), or its rows ("rows"), or neither.

    A norm other than one is that of a quotient, and times a number. Columns at right angles have
    another reason, and so have those with a mean of zero: each feature was standardised.
    """
    rows, columns = table.shape[-2:]
    count = table[..., 0].numel()
    if count < _FEWEST or min(rows, columns) < 2 or (rows == columns and table.dim() == 2):
        return ""
    over_batch, over_columns = table.norm(dim=-2), table.norm(dim=-1)
    if _is_one(over_columns):
        return "rows" if _is_quotient(edge) else ""
    norm = float(over_batch.flatten()[0])
    whole = abs(norm - 1) <= _ONE and table.dim() == 2
    if norm <= 0 or not _is_one(over_batch / norm) or not (whole or _is_quotient(edge)):
        return ""
    centred = float((table.mean(-2).abs() * rows).max()) <= _ONE * norm * rows**0.5
    apart = (table.mT @ table / norm**2 - torch.eye(columns)).abs()
    return "" if centred or float(apart.max()) <= _ONE else "batch"


def _is_one(norms: torch.Tensor) -> bool:
    """Say whether all norms are one."""
    return float((norms - 1).abs().max()) <= _ONE
