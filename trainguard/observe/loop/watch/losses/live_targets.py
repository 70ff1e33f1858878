"""Watches targets that a model makes of its own outputs: whether they learn with them."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import SumPart, affine_parts
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.losses.written_losses import Pass, pass_of
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64, 128}  # that are looked at
_MOST_NODES = 4000
_BETWEEN = 16  # operations between what a model returns and what is picked of it
_DISCOUNTS = (0.5, 0.9999)  # of what comes a step later
_DISTANCES = {"HuberLossBackward", "MseLossBackward", "SmoothL1LossBackward"}
_PICKS = autograd_graph.SAME | autograd_graph.PARTS
_PICKS |= {f"{name}Backward" for name in ("Amax", "Gather", "Index", "Max", "Minimum", "Unbind")}


class LiveTargets(Watcher):
    """
    The Probe event "live target": losses that learn through the target that they are held against.

    Such a target is made as values of states are: something known, and a share of what the same
    module returns for another input. measured: looks with one that gets a gradient, reference:
    looks with a loss that compares outputs of a module.
    """

    makes = ("Probe:live target",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._live = 0
        self._name = self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for distances in the graph of a loss."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        compared = [
            own
            for node in autograd_graph.below(loss.grad_fn, _MOST_NODES)
            if (own := _passes_in(node))
        ]
        self._looks += bool(compared)
        found = next((name for own in compared if (name := _bootstraps(own))), "")
        self._live += bool(found)
        if found and not self._source:
            self._name, self._source = found, caller()

    def finish(self) -> Iterable[Event]:
        """Return how many did."""
        if self._looks:
            self.looked.add("live target")
        if self._live:
            named = {"label": self._name, "source": self._source}
            yield make_probe("live target", self._live, self._looks, **named)


def _passes_in(node: Node) -> list[tuple[SumPart, Pass]]:
    """Return the outputs of passes that a distance is between, each with its factor."""
    return [(part, seen) for part in _difference(node) if (seen := _pass_behind(part.node))]


def _difference(node: Node) -> Iterator[SumPart]:
    """Yield the parts of the difference that a node takes the size of, nothing of other nodes."""
    edges, kind = node.next_functions, kind_of(node)
    if kind in _DISTANCES:
        for edge, sign in zip(edges[:2], (1.0, -1.0), strict=False):
            yield from affine_parts(edge, sign, _is_output) if edge[0] is not None else ()
        return
    square = kind == "PowBackward" and autograd_graph.saved(node, "exponent") == 2
    square |= kind == "MulBackward" and edges[:1] == edges[1:]
    if (square or kind == "AbsBackward") and edges[0][0] is not None:
        yield from affine_parts(edges[0], ends=_is_output)


def _is_output(node: Node) -> bool:
    """Say whether a module returned what a node made: its last operation may be a squeeze."""
    return pass_of(node) is not None


def _pass_behind(node: Node) -> Pass | None:
    """Return the pass whose output a node is picked from."""
    for _ in range(_BETWEEN):
        found = pass_of(node)
        live = [before for before, _ in node.next_functions if before is not None]
        if found is not None or not live or kind_of(node) not in _PICKS:
            return found
        node = live[0]
    return None


def _bootstraps(compared: list[tuple[SumPart, Pass]]) -> str:
    """Return the module of which a later output is the target of another one; or nothing."""
    low, high = _DISCOUNTS
    for own, (module, clock) in compared:
        for later, (other, when) in compared:
            share = -later.factor / own.factor
            is_later = other == module and when != clock and later.is_moved and not own.is_moved
            if is_later and low <= share <= high:
                return module
    return ""
