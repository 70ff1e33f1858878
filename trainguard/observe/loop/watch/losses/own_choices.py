"""Watches what a loss chooses of samples compared with each other: whether each chooses itself."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_NODES = 512  # of the graph above the model: by hand they are some dozens
_NEAR = 24  # nodes from what is chosen to where samples are compared, and so many besides
_LEAST, _LARGEST = 8, 4096  # samples
_CHOICES = {"MaxBackward": "greatest", "MinBackward": "least", "TopkBackward": "first"}
_VIEWS = {"TBackward", "TransposeBackward", "PermuteBackward", "UnsqueezeBackward"}


class OwnChoices(Watcher):
    """
    The Probe events "own choice": tables of samples with each other, where each chooses itself.

    measured: the tables in which every sample does, of reference; label: what is chosen of a row.
    """

    makes = ("Probe:own choice",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._tables, self._own = Counter[str](), Counter[str]()
        self._sources: dict[str, str] = {}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the choices that a loss is made of."""
        if loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _NODES))
        chosen = [(node, own) for node in nodes if (own := _is_own(node)) is not None]
        readers = autograd_graph.find_readers(nodes) if chosen else {}
        for node, own in chosen:
            if _compares_with_itself(node) and not _is_taken_off(node, readers):
                kind = _CHOICES[kind_of(node)]
                self.looked.add("own choice")
                self._sources.setdefault(kind, caller())
                self._tables[kind] += 1
                self._own[kind] += own

    def finish(self) -> Iterable[Event]:
        """Return what was chosen so."""
        for kind, count in self._own.items():
            if count:
                source = self._sources[kind]
                yield make_probe("own choice", count, self._tables[kind], label=kind, source=source)


def _is_own(node: Node) -> bool | None:
    """Say whether what is chosen of each row of a table is on its diagonal."""
    if kind_of(node) not in _CHOICES or not hasattr(node, "_saved_dim"):
        return None
    shape, places = autograd_graph.sizes(node), saved(node, "indices")
    if len(shape) != 2 or not _LEAST <= shape[0] <= _LARGEST:
        return None
    if places is None or not places.is_cpu or places.numel() != shape[0]:
        return None  # of several, the first is often left out
    return bool((places.flatten() == torch.arange(shape[0])).all())


def _compares_with_itself(node: Node) -> bool:
    """Say whether a table is soon made of something beside itself, along another axis."""
    near = list(autograd_graph.below(node, _NEAR))
    return any(_is_of_one(each) for each in near)


def _is_of_one(node: Node) -> bool:
    """Say whether both of what is compared are one and the same, one of them turned."""
    sides = [side for side in node.next_functions if side[0] is not None]
    if len(sides) != 2 or (sides[0] == sides[1] and not kind_of(node).startswith("Cdist")):
        return False  # a square, say
    return _before_views(*sides[0]) == _before_views(*sides[1])


def _before_views(node: Node, place: int) -> tuple[Node, int]:
    """Return what views were taken of, and which of its results."""
    while kind_of(node) in _VIEWS and node.next_functions[0][0] is not None:
        node, place = node.next_functions[0]
    return node, place


def _is_taken_off(node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Say whether what is chosen is taken off the table itself, as before an exponential."""
    table = node.next_functions[0][0]
    takes = [*readers.get(node, ())]
    takes += [reader for one in takes if kind_of(one) in _VIEWS for reader in readers.get(one, ())]
    return any(table in autograd_graph.live_inputs(one) for one in takes)
