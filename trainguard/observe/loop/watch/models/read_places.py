"""Watches where a loss reads the states of padded sequences: at the last place, or elsewhere."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, signed
from trainguard.observe.loop.watch.losses.row_ends import are_told, ends_of, find_padding
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_SHORTEST = 4  # places of a row
_LARGEST = 2**20  # tokens that are read
_HALF = 0.5  # of the rows
_FEW = 4  # inputs of features, between two backward passes


@dataclass(slots=True)
class _Reading:
    """
    Steps in which the last places alone were read, those in padding, and what share of rows.

    told: whether it is known in all of them how long the rows are; widths: of rows of features,
    which are padding for sure where each batch is as wide as its longest row.
    """

    source: str
    steps: int = 0
    padded: int = 0
    share: float = 0.0
    told: bool = True
    widths: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _LastPlace:
    """A node that reads the last place of states alone; upright: of (T, N, D)."""

    node: Node
    rows: int
    places: int
    upright: bool


class ReadPlaces(Watcher):
    """The Probe event "read": rows of tokens, or of features, that are read in their padding."""

    makes = ("Probe:read",)
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._readings: dict[str, _Reading] = {}
        # Where rows of features are not all zero, and what else a model was given.
        self._features: list[tuple[torch.Tensor, list[torch.Tensor]]] = []

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember rows of features, some of which may be padding."""
        if forward.gradients and self.recorder.age in _STEPS:
            given = [tensor.detach() for tensor in self.recorder.given]
            rows = ((t != 0).any(-1) for t in given if _may_be_padded(t))
            self._features = [*self._features, *((there, given) for there in rows)][-_FEW:]

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare the last places that are read with the rows of the tables below."""
        features, self._features = self._features, []
        if loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        if len(nodes) >= _MOST_NODES:
            return
        for read in _last_places(nodes):
            for there, given in features:
                turned = there.T if read.upright else there
                if turned.shape == (read.rows, read.places):
                    self._count_features(turned, given)
            below = set(autograd_graph.below(read.node, _MOST_NODES))
            for weight, table, padding in autograd_graph.find_tables(below):
                if table.numel() > _LARGEST:
                    continue
                if table.shape == (read.rows, read.places):
                    self._count(weight, table, padding)
                elif read.upright and table.T.shape == (read.rows, read.places):
                    self._count(weight, table.T, padding)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for name, reading in self._readings.items():
            if reading.padded and (reading.told or len(reading.widths) > 1):
                yield Probe(
                    probe="read",
                    measured=reading.share / reading.padded,
                    reference=float(reading.steps),
                    step=reading.padded,
                    label=name,
                    source=reading.source,
                )

    def _count(self, weight: torch.Tensor, rows: torch.Tensor, padding: int) -> None:
        """Count a step in which only the last place of each row of tokens is read."""
        known = padding >= 0
        ends = ends_of(rows, find_padding(rows, padding), known=known)
        if ends is not None:
            self._add(f"the tokens of {self.recorder.names.parameter(weight)}", ends, told=True)

    def _count_features(self, there: torch.Tensor, given: list[torch.Tensor]) -> None:
        """Count a step in which only the last place of each row of features is read."""
        ends = ends_of(there.int(), 0)
        if ends is not None:
            beside = self.recorder.watcher(Batches).latest()
            told = are_told(ends, there.shape[1], [*given, *beside])
            self._add("rows of features", ends, told=told, width=there.shape[1])

    def _add(self, name: str, ends: torch.Tensor, *, told: bool, width: int = 0) -> None:
        """Add a step by how much padding the rows end with."""
        self.looked.add("read")
        reading = self._readings.setdefault(name, _Reading(caller()))
        reading.steps += 1
        reading.told &= told
        reading.widths.add(width)
        share = float((ends > 0).double().mean())
        if share >= _HALF:
            reading.padded += 1
            reading.share += share


def _last_places(nodes: list[Node]) -> Iterator[_LastPlace]:
    """Yield the nodes that read the last place of states that nothing else reads."""
    readers = autograd_graph.find_readers(nodes)
    for node in nodes:
        read = _last_place(node)
        before = node.next_functions[0][0] if read is not None else None
        while before is not None and len(readers[before]) == 1:
            if autograd_graph.kind_of(before) not in autograd_graph.SAME:
                break
            before = before.next_functions[0][0]
        if read is not None and before is not None and len(readers[before]) == 1:
            yield read


def _last_place(node: Node) -> _LastPlace | None:
    """Return what is read, where a node selects the last place of many along one of two axes."""
    kind, sizes = autograd_graph.kind_of(node), autograd_graph.sizes(node)
    if kind not in ("SelectBackward", "SliceBackward") or len(sizes) != 3:
        return None
    axis = signed(node._saved_dim) % 3  # noqa: SLF001 torch names it so
    begin = getattr(node, "_saved_index", None) if kind == "SelectBackward" else node._saved_start  # noqa: SLF001
    places, rows = sizes[axis], sizes[1 - axis] if axis < 2 else 0
    if axis > 1 or places < _SHORTEST or (rows == places and axis == 0):
        return None  # of as many rows as places it is not known which of them come first
    if signed(begin) not in (-1, places - 1):
        return None
    return _LastPlace(node, rows, places, upright=axis == 0)


def _may_be_padded(given: torch.Tensor) -> bool:
    """Say whether an input is rows of features, and cheap to read."""
    plain = given.is_cpu and given.is_floating_point() and has_rows(given)
    return plain and given.dim() == 3 and given.numel() <= _LARGEST
