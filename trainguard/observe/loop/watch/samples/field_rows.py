"""Watches embeddings that several columns of numbers are looked up in."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_MOST_NODES = 4000
_LOOKS = 256
_FIELDS = range(2, 65)  # columns; more may be tokens
_TABLES = 8
_WHOLE = 0.9  # of the rows of a table are those of all columns together, and not more than
_READ = 0.75  # of them are ever read


@dataclass(slots=True)
class _Table:
    """What was read in an embedding: the largest number in each column."""

    weight: weakref.ref[torch.Tensor]
    rows: int
    most: torch.Tensor
    source: str


class FieldRows(Watcher):
    """
    The Probe events "fields": columns that begin at one row of an embedding, made for all of them.

    An embedding has as many rows as the columns have numbers in all, and each column reads the
    first ones. measured: how many rows are read, reference: of how many; step: columns.
    """

    makes = ("Probe:fields",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._tables: dict[int, _Table] = {}
        self._looks = 0

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down which rows each column reads."""
        if loss.grad_fn is None or self._looks >= _LOOKS:
            return
        self._looks += 1
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        for weight, read, _ in autograd_graph.find_tables(nodes):
            if read.shape[1] not in _FIELDS or len(read) <= 1:
                continue
            most = read.max(0).values.long()
            known = self._tables.get(id(weight))
            if known is None and len(self._tables) < _TABLES:
                held = weakref.ref(weight)
                known = _Table(held, len(weight), torch.zeros_like(most), caller())
                self._tables[id(weight)] = known
            if known is not None and known.weight() is weight and known.most.shape == most.shape:
                self.recorder.reads.ask(self, [most], partial(self._take, known))

    def _take(self, table: _Table, found: list[torch.Tensor]) -> None:
        """Take in the largest numbers of a batch."""
        table.most = torch.maximum(table.most.cpu(), found[0])

    def finish(self) -> Iterable[Event]:
        """Return the embeddings whose columns all read the first rows."""
        self.looked |= {"fields"} if self._tables else set()
        for table in self._tables.values():
            sizes = table.most + 1
            whole = _WHOLE * table.rows <= float(sizes.sum()) <= table.rows
            if whole and float(sizes.max()) <= _READ * table.rows:
                rest = {"step": len(sizes), "source": table.source}
                yield make_probe("fields", int(sizes.max()), table.rows, **rest)
