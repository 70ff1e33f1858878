"""Watches distances and sums below a loss whose two sides are one and the same."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 2, 4, 8, 16, 32}  # that are looked at: at the first, a copy may be what it is of
_MOST_NODES = 5000
_NEAR = 64  # operations from a sum to the layer that is named
_LARGEST = 1 << 20  # elements of a side
_OF_BOTH = {"HuberLossBackward", "MseLossBackward", "SmoothL1LossBackward"}
_SIZES = {"AbsBackward", "LinalgVectorNormBackward", "NormBackward", "PowBackward"}


@dataclass(slots=True)
class _Kind:
    """Looks in which a loss had distances of a kind, and those in which all of them were zero."""

    looks: int = 0
    zero: int = 0


class SelfDistances(Watcher):
    """
    The Probe events "self distance": distances of a loss that are zero, exactly, in each look.

    Of parameters to what does not learn, of what a loss function is given, and of differences of
    which both sides are one tensor in the graph. measured: looks, of reference; label: which.

    And "doubled": a tensor of several numbers that is added to itself. label: what has made it.
    """

    makes = ("Probe:self distance", "Probe:doubled")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._kinds: dict[str, _Kind] = {}
        self._source = ""
        self._doubled: dict[str, int] = {}  # looks, by what was added to itself

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the distances below a loss."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        found: dict[str, list[bool]] = {}
        doubled = set[str]()
        self.looked.add("doubled")
        for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
            if _is_doubled(node):
                doubled.add(self._name_maker(node))
            for label, is_zero in _read(node):
                found.setdefault(label, []).append(is_zero)
        for label, zeros in found.items():
            self.looked.add("self distance")
            kind = self._kinds.setdefault(label, _Kind())
            kind.looks += 1
            kind.zero += all(zeros)
        for name in doubled:
            self._doubled[name] = self._doubled.get(name, 0) + 1
        self._source = self._source or (caller() if found or doubled else "")

    def finish(self) -> Iterable[Event]:
        """Return the kinds of which all were zero in each look."""
        for label, kind in self._kinds.items():
            if kind.zero == kind.looks:
                rest = {"label": label, "source": self._source}
                yield make_probe("self distance", kind.zero, kind.looks, **rest)
        for name, looks in self._doubled.items():
            yield make_probe("doubled", looks, label=name, source=self._source)

    def _name_maker(self, node: Node) -> str:
        """Return what made a tensor that is added to itself: a layer, or else an operation."""
        made = node.next_functions[0][0]
        for below in autograd_graph.below(made, _NEAR):
            if (parameter := getattr(below, "variable", None)) is not None:
                return str(self.recorder.names.parameter(parameter)).rpartition(".")[0]
        return autograd_graph.name_of(made)


def _is_doubled(node: Node) -> bool:
    """Say whether a node adds a tensor of several numbers to itself."""
    sides = node.next_functions
    if kind_of(node) != "AddBackward" or len(sides) != 2 or sides[0] != sides[1]:
        return False
    if sides[0][0] is None or saved(node, "alpha") not in (None, 1):
        return False
    return torch.Size(autograd_graph.shape_made(node)).numel() > 1


def _read(node: Node) -> Iterator[tuple[str, bool]]:
    """Yield what kind of distance a node is of, and whether it is zero."""
    kind = kind_of(node)
    if kind in _OF_BOTH:
        sides = [saved(node, name) for name in ("self", "target")]
        same = all(map(_can_be_read, sides)) and torch.equal(sides[0], sides[1])
        if not same or bool(sides[0].any()):
            yield "what a loss function is given", same
    elif kind in _SIZES or autograd_graph.is_square(node):
        before = node.next_functions[0][0]
        apart = saved(node, "self")
        if before is None or kind_of(before) != "SubBackward" or not _can_be_read(apart):
            return
        if len(before.next_functions) != 2:  # a number is no tensor
            return
        first, second = before.next_functions
        if first == second:
            yield "a distance of a tensor to itself", True
        elif hasattr(first[0] or second[0], "variable") and None in (first[0], second[0]):
            yield "a distance of parameters to constants", not apart.any()


def _can_be_read(side: Any) -> bool:
    """Say whether a side of a distance is on the CPU, and small enough."""
    plain = isinstance(side, torch.Tensor) and side.is_cpu and has_rows(side)
    return plain and 0 < side.numel() <= _LARGEST
