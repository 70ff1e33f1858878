"""Watches losses that measure how far a prediction overlaps a mask, as Dice's and Jaccard's do."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import Edge, affine_parts, resolve
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, constants_of, kind_of
from trainguard.observe.loop.watch.losses.written_losses import output_at
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_LEAST = 16  # elements of a mask
_SLACK = 0.01  # beyond 0 and 1: what rounds to 16 bits


class Overlaps(Watcher):
    """
    The Probe event "overlap loss": overlaps of a mask with outputs that are no probabilities.

    measured: losses in which they lie below 0 or above 1, reference: of those with an overlap.
    """

    makes = ("Probe:overlap loss",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._beyond = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for what is in both parts of a quotient, and in one of them times a mask."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        quotients = [n for n in nodes if kind_of(n) == "DivBackward" and _has_two(n)]
        edges = [edge for node in quotients for edge in _overlapped(node)]
        if edges:
            self._look(edges[0])

    def _look(self, edge: Edge) -> None:
        """See whether what overlaps a mask lies between 0 and 1."""
        self.looked.add("overlap loss")
        self._looks += 1
        values = output_at(*edge)
        if values is None:
            return
        beyond = (values.min() < -_SLACK) | (values.max() > 1 + _SLACK)
        self.recorder.reads.ask(self, [beyond], partial(self._take, caller()))

    def _take(self, source: str, found: list[torch.Tensor]) -> None:
        """Count a loss whose prediction is no probability."""
        self._beyond += bool(found[0])
        self._source = self._source or source

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        if self._beyond:
            yield make_probe("overlap loss", self._beyond, self._looks, source=self._source)


def _has_two(node: Node) -> bool:
    """Say whether both what is divided and what it is divided by learn."""
    live = [before for before, _ in node.next_functions if before is not None]
    return len(live) == 2  # above and below the line


def _overlapped(node: Node) -> Iterator[Edge]:
    """Yield what a quotient has on both sides, above times zeros and ones."""
    above, below = node.next_functions
    whole = {resolve(part.edge) for part in affine_parts(below, ends=_is_masked)}
    for edge in [edge for edge in whole if _is_masked(edge[0])]:  # a union takes it off
        whole |= _bases(_masked(edge))
    for part in affine_parts(above, ends=_is_masked):
        if _is_masked(part.node) and _bases(own := _masked(part.edge)) & whole:
            yield own


def _bases(edge: Edge) -> set[Edge]:
    """Return what numbers are a sum or a multiple of."""
    return {resolve(part.edge) for part in affine_parts(edge)}


def _is_masked(node: Node) -> bool:
    """Say whether a node multiplies what learns by a table of zeros and ones."""
    live = [edge for edge in node.next_functions if edge[0] is not None]
    mask = next(constants_of(node), None) if len(live) == 1 else None
    return mask is not None and mask.numel() >= _LEAST and autograd_graph.is_mask(mask)


def _masked(edge: Edge) -> Edge:
    """Return what is multiplied by a mask."""
    return resolve(next(each for each in edge[0].next_functions if each[0] is not None))
