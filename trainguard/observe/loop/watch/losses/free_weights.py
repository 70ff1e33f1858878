"""Watches weights of terms that a loss learns: whether anything keeps them from going to zero."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import affine_parts
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}  # that are looked at
_MOST_NODES = 20000
_OPERATIONS = 16  # between a parameter and the weight that is made of it
_TERMS = 16  # that a loss has: a vector of more weights is none of them
_JOINTS = {"StackBackward", "CatBackward"}


@dataclass(slots=True)
class _Weight:
    """A weight of a term: the line, and its values so far, each of several terms their sum."""

    source: str
    values: list[float] = field(default_factory=list)


class FreeWeights(Watcher):
    """
    The Probe event "free weight": a weight of a term that only ever falls, with nothing to hold it.

    Made of one parameter, which no other part of the loss depends on. measured: at the last look,
    reference: at the first one; step: looks; label: the shape of the parameter.
    """

    makes = ("Probe:free weight",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[int, _Weight] = {}
        self._held: set[int] = set()
        self._shapes: dict[int, str] = {}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for products of a loss and what is made of one parameter alone."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None or loss.numel() != 1:
            return
        parts = affine_parts((loss.grad_fn, 0), ends=lambda node: bool(_weight_of(node)))
        weights = {part.node: found for part in parts if (found := _weight_of(part.node))}
        if not weights:
            return
        self.looked.add("free weight")
        free = _leaves_elsewhere(loss.grad_fn, weights)
        sums: dict[int, torch.Tensor] = {}
        for leaf, place, value in weights.values():
            if free is None or id(leaf) in free or place < 0:
                self._held.add(id(leaf))
            else:
                own = value.detach().float().sum()
                sums[id(leaf)] = sums[id(leaf)] + own if id(leaf) in sums else own
                self._shapes[id(leaf)] = f"({','.join(map(str, leaf.shape))})"
        for key, value in sums.items():
            weight = self._found.setdefault(key, _Weight(caller()))
            self.recorder.reads.ask(self, [value], partial(_take, weight))

    def finish(self) -> Iterable[Event]:
        """Return the weights that have fallen all the time."""
        for key, weight in self._found.items():
            values = weight.values
            falls = all(later < before for before, later in pairwise(values))
            if key not in self._held and falls and len(values) > 1 and values[-1] > 0:
                rest = {"label": self._shapes[key], "source": weight.source}
                yield make_probe("free weight", values[-1], values[0], step=len(values), **rest)


def _take(weight: _Weight, found: list[torch.Tensor]) -> None:
    """Take down what a weight was at a look."""
    weight.values.append(float(found[0]))


def _weight_of(node: Node) -> tuple[torch.Tensor, int, torch.Tensor] | None:
    """
    Return the parameter that a product takes a weight of a loss from, its place, and the weight.

    None of other products; a place below zero where it cannot be read what the weight was.
    """
    if kind_of(node) not in ("MulBackward", "DivBackward"):
        return None
    edges = [before for before, _ in node.next_functions]
    if len(edges) != 2 or any(before is None for before in edges):
        return None
    places = (0, 1) if kind_of(node) == "MulBackward" else (1,)
    found = [(place, leaf) for place in places if (leaf := _only_leaf(edges[place])) is not None]
    if len(found) != 1 or not _is_of_losses(node, edges[1 - found[0][0]]):
        return None
    place, leaf = found[0]
    value = saved(node, "other" if place else "self")
    if value is None:
        return leaf, -1, leaf
    return leaf, place, value if kind_of(node) == "MulBackward" else 1 / value.detach()


def _is_of_losses(node: Node, other: Node) -> bool:
    """Say whether a product is of single losses, or of several of them in a vector."""
    count = torch.Size(autograd_graph.shape_made(node)).numel()
    return count == 1 or (count <= _TERMS and kind_of(other) in _JOINTS)


def _only_leaf(node: Node) -> torch.Tensor | None:
    """Return the one parameter that something is made of, by few operations; None of others."""
    nodes = list(autograd_graph.below(node, _OPERATIONS))
    if len(nodes) >= _OPERATIONS:
        return None
    leaves = [leaf for each in nodes if (leaf := getattr(each, "variable", None)) is not None]
    alone = len({id(leaf) for leaf in leaves}) == 1 and leaves[0].numel() <= _TERMS
    return leaves[0] if alone else None


def _leaves_elsewhere(root: Node, weights: dict[Node, Any]) -> set[int] | None:
    """Return the leaves that a loss depends on but for weights; None where it is too large."""
    waiting, seen, leaves = [root], {root}, set()
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        for before in _read_by(node, weights):
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
        if len(seen) > _MOST_NODES:
            return None
    return leaves


def _read_by(node: Node, weights: dict[Node, Any]) -> Iterator[Node]:
    """Yield what a node is made of, but for the weights of terms."""
    skipped = weights[node][1] if node in weights else -1
    for place, (before, _) in enumerate(node.next_functions):
        if place != skipped:
            yield before
