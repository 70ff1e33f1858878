"""Watches for series that were scaled as a whole before the end of them was held out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.counterfactual.sample_axis import FRAMES, tables_in
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.fingerprint import Hashes, hashes_of_rows
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import user_frames, variables_of

_BATCHES = 256  # of training, and of evaluation
_LARGEST = 2**18  # elements of a batch
_SERIES = 2**21  # elements of a series
_LEAST = 64  # moments of a series
_ROWS = 16  # of each part that are found in the series, at least
_FOUND = 0.9  # of the rows of each part: what is cut from elsewhere is no part of it
_BEGINNING = 4  # numbers by which a row is found in a series
_NEAR = 1e-5  # of a mean of zero and a deviation of one: what rounding leaves
_DEVIATION = 1e-4
_APART = 0.1  # deviations, or of a range: less is little to know
_EDGE = 1e-6  # of a range
_RARE = 0.02  # of the moments that are at an edge: marks and shares are there more often


class SharedScale(NamedTuple):
    """A scale that a whole series has: by what, and what the training part has instead."""

    by: str
    low: float
    high: float


@dataclass(slots=True)
class _FoundRows:
    """How the rows of training, or of evaluations, begin."""

    begins: list[Hashes] = field(default_factory=list)
    rows: int = 0

    def add(self, given: torch.Tensor) -> None:
        """Take in a batch."""
        self.begins.append(hashes_of_rows(given.flatten(1)[:, :_BEGINNING].float()))
        self.rows += len(given)

    def places(self, series: Hashes) -> Any:
        """Return where its rows begin in a series, nothing where most are not from there."""
        begins = np.concatenate(self.begins)
        order = np.argsort(series, kind="stable")
        found = np.minimum(np.searchsorted(series[order], begins), len(series) - 1)
        places = order[found]
        places = places[series[places] == begins]
        enough = len(places) >= max(_ROWS, _FOUND * len(begins))
        return places if enough else places[:0]


class SharedScales(Watcher):
    """
    The Probe event "shared scale": a series whose scale is that of all of it, later parts too.

    Rows that are learned from, and rows of evaluations that begin before or after all of these,
    are found in a variable of the script, whose mean and deviation are 0 and 1, or which goes from
    0 to 1, only where all of it is taken together.
    """

    makes = ("Probe:shared scale",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._parts: dict[str, tuple[_FoundRows, _FoundRows]] = {}
        self._found: Probe | None = None
        self._done: set[str] = set()

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down how the rows of a batch begin; look for the series in the first evaluation."""
        if self._found is not None or forward.module in self._done or not self.recorder.probe:
            return
        given = next(iter(self.recorder.given), None)
        if given is None or not _is_cut(given):
            self._done.add(forward.module)
            return
        trained, shown = self._parts.setdefault(forward.module, (_FoundRows(), _FoundRows()))
        part = trained if forward.gradients else shown
        if len(part.begins) >= _BATCHES or (part is shown and trained.rows < _ROWS):
            return
        part.add(given.detach())
        seen = len(shown.begins)
        if part is shown and seen & (seen - 1) == 0 and shown.rows >= _ROWS:
            with np.errstate(all="ignore"):  # a series may have numbers that are not finite
                self._search(forward.module, given.shape[1:].numel(), trained, shown)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return [self._found] if self._found is not None else []

    def _search(self, module: str, length: int, trained: _FoundRows, shown: _FoundRows) -> None:
        """Look for the series in the variables of the script, and at its scale."""
        for name, series in _series():
            width, begins = series.shape[1], _beginnings(series)
            first, held_out = (part.places(begins) for part in (trained, shown))
            if not len(first) or not len(held_out):
                continue
            self.looked.add("shared scale")
            begin, end = int(first.min()), int(first.max())
            if 2 * int(((held_out < begin) | (held_out > end)).sum()) <= len(held_out):
                continue
            scale = _scale_of(series, slice(begin, end + max(1, length // width)))
            if scale is not None:
                label = f"{module} {name} {scale.by} {len(series)}"
                self._found = make_probe("shared scale", scale.low, scale.high, label=label)
                return


def _is_cut(given: torch.Tensor) -> bool:
    """Say whether an input may be rows or windows of a series of numbers."""
    plain = given.is_cpu and given.layout == torch.strided and given.grad_fn is None
    if not plain or not has_rows(given) or given.dtype not in (torch.float32, torch.float64):
        return False
    rows = given.shape[1:].numel() if 1 < given.dim() < 4 else 0
    return rows >= _BEGINNING and 0 < given.numel() <= _LARGEST


def _series() -> Iterator[tuple[str, Any]]:
    """Yield variables of the script that may be a series (L, F), with their names."""
    for variables in map(variables_of, user_frames(FRAMES)):
        for name, value in variables.items():
            for table in tables_in(value):
                if isinstance(table, torch.Tensor):
                    if not table.is_cpu or table.layout != torch.strided or table.requires_grad:
                        continue
                    table = array_of(table)
                fits = table.ndim in (1, 2) and table.dtype.kind == "f" and table.size > 0
                if fits and table.size <= _SERIES and len(table) >= _LEAST:
                    yield name, table.reshape(len(table), -1)


def _beginnings(series: Any) -> Hashes:
    """Return what a row that begins at each moment would be found by."""
    flat = np.ascontiguousarray(series, dtype=np.float32).reshape(-1)
    flat = np.pad(flat, (0, _BEGINNING), constant_values=np.nan)
    spans = np.lib.stride_tricks.sliding_window_view(flat, _BEGINNING)
    return hashes_of_rows(torch.from_numpy(spans[: series.size : series.shape[1]].copy()))


def _scale_of(series: Any, part: slice) -> SharedScale | None:
    """Return the scale of a series, where that is not one of the part that is learned from."""
    for column in np.asarray(series, dtype=np.float64).T:
        own = column[part]
        if _is_standard(column) and max(abs(own.mean()), abs(own.std() - 1)) >= _APART:
            return SharedScale("deviation", float(own.mean()), float(own.std()))
        if _is_a_range(column) and max(own.min(), 1 - own.max()) >= _APART:
            return SharedScale("range", float(own.min()), float(own.max()))
    return None


def _is_standard(column: Any) -> bool:
    """Say whether numbers have a mean of zero and a deviation of one, by either divisor."""
    rows, deviation = len(column), column.std()
    unlike = min(abs(deviation - 1), abs(deviation * np.sqrt(rows / (rows - 1)) - 1))
    return bool(abs(column.mean()) < _NEAR and unlike < _DEVIATION)


def _is_a_range(column: Any) -> bool:
    """Say whether numbers go from 0 to 1, and are hardly ever there."""
    ends = max(abs(column.min()), abs(column.max() - 1)) < _EDGE
    return bool(ends and ((column == 0) | (column == 1)).mean() < _RARE)
