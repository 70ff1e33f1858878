"""Watches inputs that are scaled by numbers with names: whether each is used for what it is."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import find_owners, words_in
from trainguard.observe.tools.user_line import caller

_BATCHES = 16  # of training that are measured
_LEAST, _LARGEST = 256, 2**22  # rows that tell a mean and a deviation; numbers of a batch
_WIDEST = 1024  # columns
_TRIES = 4  # passes in which a scale is looked for
_PAIRS = 16  # of a mean and a deviation
_NEAR, _NEAR_ALONE = 0.1, 0.03  # deviations, and of a deviation: of several columns, and of one
_CHANCE = 4.0  # deviations of the mean of so many rows
_ASIDE = 0.1  # deviations of a mean from zero
_MEANS = {"mean", "means", "mu"}
_SPREADS = {"std", "stds", "sd", "sigma", "stdev", "var", "variance"}
_SQUARED = {"var", "variance"}

Numbers = NDArray[np.float64]
Pair = tuple[Numbers, Numbers]  # a mean, and a deviation


class NamedScales(Watcher):
    """
    The Probe event "misread scale": inputs that are what a wrong use of a named scale would give.

    Of a mean and a standard deviation in variables of those names. measured: the mean of the first
    column as the model is given it; reference: its deviation; label: which mistake it is, and the
    two numbers.
    """

    makes = ("Probe:misread scale",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._pairs: list[Pair] = []
        self._sums: list[torch.Tensor] = []  # of the columns, and of their squares
        self._rows = self._batches = self._tries = 0
        self._source = ""

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Measure what a pass that learns is given, and look for what it was scaled by."""
        given = next(iter(self.recorder.given), None)
        if not forward.gradients or given is None or not _has_columns(given):
            return
        columns = _columns_of(given.detach())
        if not self._batches:
            self._tries += 1
            self._pairs = list(_find_pairs(columns.shape[1]))
            self._source = caller()
            self._sums = [torch.zeros(columns.shape[1], dtype=torch.double) for _ in range(2)]
            if not self._pairs and self._tries >= _TRIES:
                self.recorder.dismiss(self)
        known = self._pairs and columns.shape[1] == len(self._sums[0])
        if known and self._batches < _BATCHES:
            self._batches, self._rows = self._batches + 1, self._rows + len(columns)
            self._sums[0] += columns.sum(0, dtype=torch.double)
            self._sums[1] += columns.double().square().sum(0)

    def finish(self) -> Iterable[Event]:
        """Return the mistake that explains what was given, where nothing else does."""
        if self._rows < _LEAST:
            return
        mean = np.asarray((self._sums[0] / self._rows).tolist())
        square = np.asarray((self._sums[1] / self._rows).tolist())
        given = mean, np.sqrt(np.maximum(square - mean**2, 0))
        chance = _CHANCE / self._rows**0.5
        alone = max(_NEAR_ALONE, chance)  # single numbers fit by chance sooner than one a column
        near = max(_NEAR, chance) if len(mean) > 1 else alone
        right = any(_is(given, _uses(*pair)[""], near) for pair in self._pairs)
        self.looked |= {"misread scale"} if right else set()
        for pair in self._pairs:
            close = near if len(pair[0]) > 1 else alone
            wrong = [use for use, made in _uses(*pair).items() if use and _is(given, made, close)]
            if wrong and not right:
                self.looked.add("misread scale")
                label = f"{wrong[0]} {pair[0][0]!s} {pair[1][0]!s}"
                yield make_probe(
                    "misread scale", mean[0], given[1][0], label=label, source=self._source
                )
                return


def _uses(mean: Numbers, spread: Numbers) -> dict[str, Pair]:
    """Return the mean and deviation that data have after a scale was used rightly, or otherwise."""
    zero, one = np.zeros_like(mean), np.ones_like(mean)
    known = np.where(mean == 0, np.nan, mean)  # nobody divides by zero
    return {
        "": (zero, one),
        "exchanged": ((mean - spread) / known, np.abs(spread / known)),
        "twice": (-mean / spread, one / spread),
        "squared": (zero, one / spread),
        "the mean": (zero, np.abs(spread / known)),
        "multiplied": (zero, spread**2),
    }


def _is(given: Pair, made: Pair, near: float) -> bool:
    """Say whether columns have a mean and a deviation, but for a share of it."""
    wanted = np.broadcast_to(made[0], given[0].shape), np.broadcast_to(made[1], given[1].shape)
    here = np.abs(given[0] - wanted[0]) <= near * wanted[1]
    return bool((here & (np.abs(given[1] - wanted[1]) <= near * wanted[1])).all())


def _find_pairs(columns: int) -> Iterator[Pair]:
    """Yield each mean and deviation of so many columns, or of all, whose names belong together."""
    left = _PAIRS
    for _, _, values in find_owners():
        named = {name: value for name, value in values.items() if isinstance(name, str)}
        for name, value in named.items():
            if not words_in(name) & _MEANS:
                continue
            for other, beside in named.items():
                spread = words_in(other) & _SPREADS
                if not spread or words_in(name) - _MEANS != words_in(other) - _SPREADS:
                    continue
                mean, scale = _numbers_of(value), _numbers_of(beside)
                if mean is None or scale is None or len(mean) != len(scale) or not left:
                    continue
                aside = (np.abs(mean) > _ASIDE * scale).any()  # else it is no scale of data
                if len(mean) in (1, columns) and (scale > 0).all() and aside:
                    left -= 1
                    yield mean, np.sqrt(scale) if spread & _SQUARED else scale


def _numbers_of(value: Any) -> Numbers | None:
    """Return a few finite numbers on the host as a vector."""
    if isinstance(value, torch.Tensor):
        able = value.is_cpu and has_rows(value) and value.is_floating_point()
        value = array_of(value) if able and value.dtype is not torch.bfloat16 else None
    plain = isinstance(value, float | np.floating | np.ndarray) or (
        type(value) in (list, tuple) and all(isinstance(each, float) for each in value)
    )
    if not plain:
        return None
    found = np.asarray(value)
    if found.dtype.kind != "f" or not 0 < found.size <= _WIDEST or not np.isfinite(found).all():
        return None
    return found.astype(np.float64).reshape(-1)


def _columns_of(given: torch.Tensor) -> torch.Tensor:
    """Return a table of an input: of a picture its channels, else what lies along its last axis."""
    if given.dim() != 3:
        return given.movedim(1, -1).flatten(0, -2) if given.dim() > 3 else given
    return _leave_out_padding(given)


def _leave_out_padding(rows: torch.Tensor) -> torch.Tensor:
    """Return the places of rows (N, T, C) as a table, but those that are as some end, or begin."""
    places, kept = rows.flatten(0, 1), torch.ones(rows.shape[:2], dtype=torch.bool).flatten()
    for ends in (rows[:, -1], rows[:, 0]):
        values, counts = torch.unique(ends, dim=0, return_counts=True)
        if int(counts.max()) > 1:  # in several rows: no numbers that were measured
            kept &= (places != values[counts.argmax()]).any(1)
    return places[kept] if bool(kept.any()) else places


def _has_columns(given: torch.Tensor) -> bool:
    """Say whether an input may have been scaled, and is cheap to measure."""
    plain = type(given) is torch.Tensor and given.is_cpu and given.grad_fn is None
    able = plain and given.is_floating_point() and has_rows(given) and 1 < given.dim() < 6
    if not able or not 0 < given.numel() <= _LARGEST:
        return False
    return given.shape[1 if given.dim() > 3 else -1] <= _WIDEST
