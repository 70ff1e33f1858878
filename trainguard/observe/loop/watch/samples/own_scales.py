"""Watches for data that are scaled each by its own numbers: of training, and of evaluation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_BATCHES = 256  # of training before the first evaluation; and of that
_LARGEST = 2**18  # elements of a batch
_ROWS = 16  # of an evaluation, at least
_COLUMNS = 2  # that have a spread, at least
_NEAR = 1e-4  # of a mean; that of other rows is further away by chance in all columns
_NEARER = 1e-5  # of the one mean of all numbers, which may be near by chance sooner
_SPREAD = 1e-3  # of a standard deviation, beside what another divisor makes
_CENTRED = 0.1  # deviations: a training that is in the scale of its own rows, but for some of them
_RARE = 0.02  # of the rows that have the least or the largest number, where all differ
_EDGE = 1e-6  # of a range: what rounding leaves of 0 and 1


@dataclass(slots=True)
class _TrainedRows:
    """The rows that a module learned from: sums by place, and what rows are known again by."""

    sums: torch.Tensor
    keys: set[bytes] = field(default_factory=set)
    rows: int = 0
    batches: int = 0

    def add(self, given: torch.Tensor) -> None:
        """Take in a batch."""
        self.sums = self.sums + given.sum(0, dtype=torch.double)
        self.keys.update(_keys(given))
        self.rows += len(given)
        self.batches += 1


@dataclass(slots=True)
class _ShownRows:
    """
    The rows of an evaluation: sums of numbers and squares by place, the least and the largest.

    edges: how many rows have 0 or 1 there. single: whether each row has a mean of zero by itself.
    """

    sums: torch.Tensor
    squares: torch.Tensor
    least: torch.Tensor
    most: torch.Tensor
    edges: torch.Tensor
    keys: set[bytes] = field(default_factory=set)
    rows: int = 0
    batches: int = 0
    single: bool = True
    distinct: bool = True
    source: str = ""

    def add(self, given: torch.Tensor) -> None:
        """Take in a batch."""
        self.sums = self.sums + given.sum(0, dtype=torch.double)
        self.squares = self.squares + given.double().square().sum(0)
        self.least = torch.minimum(self.least, given.amin(0))
        self.most = torch.maximum(self.most, given.amax(0))
        self.edges = self.edges + ((given == 0) | (given == 1)).sum(0)
        self.single &= bool((given.flatten(1).mean(1).abs() < _SPREAD).all())
        if not self.batches and given.dim() == _COLUMNS:
            counts = [len(column.unique()) for column in given.T]
            self.distinct = sum(count == len(given) for count in counts) >= _COLUMNS
        self.keys.update(_keys(given))
        self.rows += len(given)
        self.batches += 1

    def scaling(self, trained: _TrainedRows) -> str:
        """Return by what these rows are scaled, where it is their own: "column", "range"..."""
        means = trained.sums / trained.rows
        for kind, (mine, squares, theirs) in _groups(
            self.sums / self.rows, self.squares / self.rows, means
        ):
            if self.single and kind != "column":
                continue  # each sample is scaled by itself
            spread = (squares - mine.square()).clamp_min(0).sqrt()
            wide = spread > _NEAR
            near = (spread[wide] - 1).abs() < _SPREAD + 1 / self.rows
            enough = _COLUMNS if kind != "number" else 1
            limit = _NEAR if kind != "number" else _NEARER
            if int(wide.sum()) < enough or not near.all() or (mine.abs() >= limit).any():
                continue
            if (theirs[wide].abs() < _CENTRED).all():
                return kind
        return "range" if self._fills_its_range() else ""

    def _fills_its_range(self) -> bool:
        """Say whether each column of a table goes from 0 to 1, and is there in one row or so."""
        if self.sums.dim() != 1 or not self.distinct:
            return False
        wide = (self.most > self.least) & (self.edges <= max(_COLUMNS, _RARE * self.rows))
        edges = (self.least.abs() < _EDGE) & ((self.most - 1).abs() < _EDGE)
        return int(wide.sum()) >= _COLUMNS and bool(edges[wide].all())


class OwnScales(Watcher):
    """
    The Probe event "own scale": a first evaluation whose inputs are scaled by their own numbers.

    They have a mean of zero and a deviation of one, or go from 0 to 1, as those of the training,
    and are other rows: one scale cannot have made both.
    """

    makes = ("Probe:own scale",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._tables: dict[str, tuple[_TrainedRows, _ShownRows]] = {}
        self._found: list[Probe] = []
        self._done: set[str] = set()

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Add up a batch, up to the end of the first evaluation."""
        if forward.module in self._done or not self.recorder.probe:
            return
        given = next(iter(self.recorder.given), None)
        trained, shown = self._tables.get(forward.module, (None, None))
        if forward.gradients and shown is not None and shown.rows:
            self._close(forward.module)
        elif given is None or not _is_scaled(given):
            self._done.add(forward.module)
        elif trained is None or shown is None:
            if forward.gradients:
                zeros = torch.zeros_like(given[0], dtype=torch.double)
                far = torch.full_like(given[0], torch.inf)
                self._tables[forward.module] = (
                    _TrainedRows(zeros),
                    _ShownRows(zeros, zeros, far, -far, zeros),
                )
                self._tables[forward.module][0].add(given.detach())
        elif given.shape[1:] != trained.sums.shape or trained.batches >= _BATCHES:
            self._done.add(forward.module)
        elif forward.gradients:
            trained.add(given.detach())
        else:
            shown.source = shown.source or caller(4)
            shown.add(given)
            if shown.batches >= _BATCHES:
                self._done.add(forward.module)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for name in self._tables.keys() - self._done:
            self._close(name)
        return self._found

    def _close(self, name: str) -> None:
        """Compare training and evaluation, once."""
        self._done.add(name)
        trained, shown = self._tables.pop(name)
        again = len(shown.keys & trained.keys)
        if shown.rows < _ROWS or not trained.rows or 2 * again > len(shown.keys):
            return
        self.looked.add("own scale")
        by = shown.scaling(trained)
        if by:
            label = f"{name} {by}"
            self._found.append(
                make_probe("own scale", shown.rows, trained.rows, label=label, source=shown.source)
            )


def _groups(*sums: torch.Tensor) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    """Yield means by what they may be scaled by: each place, each row or column, all numbers."""
    yield "column", tuple(each.flatten() for each in sums)
    inner = sums[0].dim()
    if inner > 1:
        yield "channel", tuple(each.flatten(1).mean(1) for each in sums)
        yield "channel", tuple(each.flatten(0, -2).mean(0) for each in sums)
    if sums[0].numel() > 1:
        yield "number", tuple(each.mean().reshape(1) for each in sums)


def _keys(given: torch.Tensor) -> list[bytes]:
    """Return what rows are known again by: some of their numbers."""
    rows = given.detach().flatten(1)
    places = [rows.shape[1] * share // 4 for share in range(4)]
    chosen = np.ascontiguousarray(array_of(rows[:, places]))
    keys: list[bytes] = chosen.view(f"V{4 * chosen.itemsize}").ravel().tolist()
    return keys


def _is_scaled(given: torch.Tensor) -> bool:
    """Say whether an input may have been scaled, and is cheap to add up."""
    plain = given.is_cpu and given.layout == torch.strided and given.grad_fn is None
    if not plain or not has_rows(given):
        return False
    able = given.dtype in (torch.float32, torch.float64) and 1 < given.dim() < 5
    return able and given.shape[1:].numel() >= _COLUMNS and 0 < given.numel() <= _LARGEST
