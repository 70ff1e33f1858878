"""Watches for two linear layers with nothing in between that is not linear, which are one."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients.autograd_graph import (
    VIEWS,
    Node,
    below,
    find_readers,
    kind_of,
)
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then

# Of all optimizers, after which the next pass backward is looked at; in pairs, as losses take turns
_STEPS = (0, 1, 2, 3, 8, 9)
_MOST_NODES = 4000
_PRODUCTS = {"AddmmBackward": 1, "MmBackward": 0}  # and at which place what is multiplied stands

_Stack = tuple[int, str, int, int]


class StackedLayers(Watcher):
    """
    The Probe events "stacked", of two linear layers in a row that are wider between than around.

    measured: the width between them; reference: the larger one of those before and after; step: in
        how many passes backward it was seen, which are all that were looked at and reach the second
        of them.
    """

    makes = ("Probe:stacked",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._due = list(_STEPS)
        self._looks: Counter[int] = Counter()  # by the matrix of the second layer
        self._seen: Counter[_Stack] = Counter()

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the graph, in a few of the first steps."""
        if not self._due or self.recorder.steps < self._due[0] or loss.grad_fn is None:
            return
        self._due = [step for step in self._due if step > self.recorder.steps]
        nodes = list(below(loss.grad_fn, _MOST_NODES))
        if len(nodes) <= _MOST_NODES:
            self.looked.add("stacked")
            matrices = (_weight_of(node) for node in nodes if kind_of(node) in _PRODUCTS)
            self._looks.update({id(matrix[0]) for matrix in matrices if matrix is not None})
            self._seen.update(set(self._find_stacks(nodes)))

    def finish(self) -> Iterable[Event]:
        """Return what was there in every look."""
        for (second, label, width, around), looks in self._seen.items():
            if looks == self._looks[second] > 1:
                yield Probe(
                    probe="stacked",
                    measured=float(width),
                    reference=float(around),
                    step=looks,
                    label=label,
                )

    def _find_stacks(self, nodes: list[Node]) -> Iterator[_Stack]:
        """Yield the second of two layers, both names, the width between, and the larger around."""
        readers, name = find_readers(nodes), self.recorder.names.parameter
        for node in nodes:
            first = _layer_before(node, readers)
            one, other = (None, None) if first is None else (_weight_of(first), _weight_of(node))
            if one is None or other is None or one[2] != other[1]:
                continue
            width, around = one[2], max(one[1], other[2])
            if width > around and one[0] is not other[0]:
                yield id(other[0]), f"{name(one[0])} and {name(other[0])}", width, around


def _layer_before(node: Node, readers: dict[Node, list[Node]]) -> Node:
    """Return the product that one is made of, and nothing else; None where there is no such."""
    place = _PRODUCTS.get(kind_of(node))
    if place is None:
        return None
    before = node.next_functions[place][0]
    while before is not None and kind_of(before) in VIEWS and len(readers[before]) == 1:
        before = before.next_functions[0][0]
    alone = before is not None and len(readers[before]) == 1
    return before if alone and kind_of(before) in _PRODUCTS else None


def _weight_of(node: Node) -> tuple[torch.Tensor, int, int] | None:
    """Return the matrix that a product multiplies by, and its sizes before and after."""
    edge = node.next_functions[_PRODUCTS[kind_of(node)] + 1][0]
    turned = edge is not None and kind_of(edge) == "TBackward"
    leaf = getattr(edge.next_functions[0][0] if turned else edge, "variable", None)
    if leaf is None or leaf.dim() != 2:
        return None
    after, before = leaf.shape if turned else reversed(leaf.shape)
    return leaf, int(before), int(after)
