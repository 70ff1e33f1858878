"""Watches the messages of a graph: whether they come back to the nodes that they are from."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.models.message_ends import READS, SUMS, first_index
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 8, 64}  # that are looked at
_MOST_NODES = 4096
_LEAST = 32  # edges: fewer may be some by chance
_INPUTS = 4  # tables of nodes


class ReturnedMessages(Watcher):
    """
    The Probe events "messages returned": looks at which no message reaches another node, of all.

    A variable of the script has the edges, as a table of two rows. Rows of nodes are read by one of
    them, and what is made of these is added up by the same; the other row is used for nothing. Rows
    of an input that needs no gradient are known by their values, where a layer is given them.
    """

    makes = ("Probe:messages returned",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._given: list[weakref.ref[torch.Tensor]] = []
        self._looks = self._returned = 0
        self._source = ""

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what may be a table of nodes."""
        if forward.gradients and self.recorder.age in _STEPS:
            rows = [t for t in self.recorder.given if has_rows(t) and t.dim() == 2]
            tables = [t for t in rows if t.is_floating_point() and t.is_cpu]
            self._given = [weakref.ref(table) for table in tables[:_INPUTS]]

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for sums of messages below a loss."""
        given, self._given = self._given, []
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        sums = [first_index(node, SUMS) for node in nodes if kind_of(node) in SUMS]
        ends = [each for each in sums if each is not None and len(each) >= _LEAST]
        if len(nodes) >= _MOST_NODES or not ends or len(ends) < len(sums):
            return
        tables = [table for ref in given if (table := ref()) is not None]
        for used, other in _find_edges(ends[0]):
            self.looked.add("messages returned")
            self._looks += 1
            alone = all(torch.equal(end, used) for end in ends)
            if (
                alone
                and _are_read_by(used, nodes, tables)
                and not _are_read_by(other, nodes, tables)
            ):
                self._returned += 1
                self._source = caller()
            return

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._returned:
            yield make_probe("messages returned", self._returned, self._looks, source=self._source)


def _are_read_by(index: torch.Tensor, nodes: list[Node], tables: list[torch.Tensor]) -> bool:
    """Say whether rows are read by an index below a loss, or given to a layer as they are so."""
    reads = (first_index(node, READS) for node in nodes if kind_of(node) in READS)
    if any(each is not None and torch.equal(each, index) for each in reads):
        return True
    layers = (saved(node, "mat1") for node in nodes if kind_of(node) == "AddmmBackward")
    given = [each.detach() for each in layers if each is not None and has_rows(each)]
    rows = [each for each in given if each.is_cpu and len(each) == len(index)]
    able = [t.detach() for t in tables if len(t) > int(index.max())]
    return any(_has_columns(each, table[index]) for each in rows for table in able)


def _has_columns(rows: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Say whether rows begin or end with some columns."""
    width = wanted.shape[1]
    if not 0 < width <= rows.shape[1] or rows.dtype != wanted.dtype:
        return False
    return torch.equal(rows[:, :width], wanted) or torch.equal(rows[:, -width:], wanted)


def _find_edges(used: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one end of edges and the other, of a table among the variables with these ends."""
    for _, _, values in find_owners():
        for value in values.values():
            if not isinstance(value, torch.Tensor) or value.is_floating_point():
                continue
            if not value.is_cpu or not has_rows(value) or value.shape != (2, len(used)):
                continue
            for one, other in (value, value.flip(0)):
                if torch.equal(one, used):
                    yield one, other
