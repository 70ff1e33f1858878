"""Watches boxes whose overlap is computed by their corners: whether they are given as corners."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_WIDTH = 4  # numbers of a box
_HALF = 2  # of them for the corner that it begins at
_LEAST, _LARGEST = 8, 2**18  # boxes of a table
_CALLS = 3  # with one table, before and after a step: what a model has predicted is another then
_TABLES = 64  # that are followed


@dataclass(frozen=True, slots=True)
class _BoxColumns:
    """Columns of a table, from `first` on; key: its identity; size: of one row."""

    table: "weakref.ref[torch.Tensor]"
    key: int
    first: int
    size: int


@dataclass(slots=True)
class _Boxes:
    """A table of boxes that comes again; step: the first that it was seen in, of so many calls."""

    table: "weakref.ref[torch.Tensor]"
    version: int
    step: int
    source: str
    calls: int = 0
    is_looked_at: bool = False


@dataclass(slots=True)
class _Corners:
    """The columns that the larger, or the smaller, was last taken of."""

    larger: list[_BoxColumns] = field(default_factory=list)
    smaller: list[_BoxColumns] = field(default_factory=list)


class CornerBoxes(Watcher):
    """
    The Probe event "corners": boxes that end left of where they begin, or above it, of a table.

    The larger of the first two columns of two tables is taken, and the smaller of the next two: so
    begins the overlap of boxes by their corners. Only tables that stay the same over steps are
    looked at, such as anchors and labels. measured: such boxes, of those that differ (reference).
    """

    makes = ("Probe:corners",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._latest = _Corners()
        self._known: dict[tuple[int, int], _Boxes] = {}
        self._found: list[Event] = []

    def install(self, patches: Patches) -> None:
        """Be told of what takes the larger, or the smaller, of two tensors."""
        for name in ("max", "maximum"):
            patches.replace(torch, name, tell_after(partial(self._see, True)))
        for name in ("min", "minimum"):
            patches.replace(torch, name, tell_after(partial(self._see, False)))

    def _see(self, larger: bool, _result: Any, *args: Any, **_: Any) -> None:
        """See a call, which mostly is of one tensor."""
        two = len(args) == 2 and all(isinstance(each, torch.Tensor) for each in args)
        if two and self.recorder.patches.live:
            self._take(larger, args)

    @shielded
    def _take(self, larger: bool, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Take down of which columns it is, and look where both corners are known."""
        columns = [found for each in pair if (found := _find_columns(each)) is not None]
        latest = self._latest
        if larger:
            latest.larger = columns
        else:
            latest.smaller = columns
        if len(columns) < len(pair) or len(latest.larger) != len(latest.smaller):
            return
        ends = {(column.key, column.first) for column in latest.smaller}
        if all((c.key, c.first + _HALF) in ends for c in latest.larger):
            for column in latest.larger:
                table = column.table()
                if table is not None and table.numel() >= _LEAST * column.size:
                    self._follow(table, column)
            self._latest = _Corners()

    def _follow(self, table: torch.Tensor, boxes: _BoxColumns) -> None:
        """Count a table, and look at one that has stayed the same."""
        place = boxes.key, boxes.first
        known = self._known.get(place)
        version = table._version  # noqa: SLF001 there is no other
        if known is None or known.table() is not table or known.version != version:
            if known is None and len(self._known) >= _TABLES:
                return
            known = _Boxes(boxes.table, version, self.recorder.steps, caller())
            self._known[place] = known
        known.calls += 1
        stays = known.calls >= _CALLS and self.recorder.steps > known.step
        if stays and not known.is_looked_at:
            known.is_looked_at = True
            self._look(table, boxes, known)

    def _look(self, table: torch.Tensor, boxes: _BoxColumns, known: _Boxes) -> None:
        """Count the boxes that end before they begin."""
        every = table.detach().reshape(-1, boxes.size)
        rows = every[:, boxes.first : boxes.first + _WIDTH]
        rows = torch.unique(rows, dim=0)  # what pads comes once
        if len(rows) < _LEAST:
            return
        self.looked.add("corners")
        turned = int((rows[:, _HALF:] < rows[:, :_HALF]).any(1).sum())
        if turned:
            self._found.append(
                make_probe("corners", turned, len(rows), step=known.step, source=known.source)
            )

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found


def _find_columns(tensor: torch.Tensor) -> _BoxColumns | None:
    """Return the columns of a table of numbers that a tensor is a view of, if it is."""
    table = tensor._base  # noqa: SLF001 there is no other
    if table is None or table.dim() < 2 or not table.is_contiguous():
        return None
    size = table.shape[-1]
    fits = _WIDTH <= size <= 2 * _WIDTH and table.numel() // size <= _LARGEST
    plain = table.is_cpu and table.is_floating_point() and not table.requires_grad
    if not (fits and plain) or tensor.storage_offset() < table.storage_offset():
        return None
    first = int(tensor.storage_offset() - table.storage_offset()) % size
    return _BoxColumns(weakref.ref(table), id(table), first, size)
