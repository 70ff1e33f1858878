"""Watches mixtures of data and noise that a model learns from: how noisy the noisiest are."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import DISTANCES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.losses.noise_times import NoiseTimes
from trainguard.observe.loop.watch.losses.noisy_mixtures import (
    NamedTable,
    NoisyMixture,
    find_mixtures,
    sample_of,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.local_values import has_rows, is_transforming, start_of
from trainguard.observe.tools.named_numbers import find_numbers
from trainguard.observe.tools.owners import named_tensors, words_in
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import user_frames

_LOOKS = 48  # passes with a mixture
_VAIN, _PASSES = 6, 16  # losses and passes without one, after which none is looked for
_ENOUGH = 2048  # rows
_TABLES = 7  # that may be a part of a mixture
_SMALLEST, _LARGEST = 16, 2**22  # elements of a table
_SHORTEST, _LONGEST = 8, 8192  # entries of a schedule
_NOISY = 0.7  # as a deviation: where a tenth of the rows has as much there is nothing to find
_UNRELATED = 0.2  # a correlation: of independent numbers, that of 512 rows is within 4.5 deviations
_OFTEN = 0.9  # of the rows
_SURE = 2  # looks in which the schedule is known
_FRAMES = 4  # of the user's code, beside which a schedule may stand
_REAL = {torch.float16, torch.float32, torch.float64}
_VARIANCES = {"beta", "betas"}  # words in the names of those of single steps
_NEAR = (1e-2, 1e-5)  # of a variance that was found by least squares: a share of it, and more


class NoiseLevels(Watcher):
    """
    The Probe event "noise levels": how much noise is in what a model learns to tell it from.

    Of mixtures a * data + b * noise with a * a + b * b = 1, where b differs from row to row.
    measured: the largest b, reference: of so many rows. label: "one step" where b * b is the
    variance that a schedule has for a single step; measured is what 9 of 10 rows have at most.

    And "noise times": how b goes with the time that the model is told of each row, as a correlation
    of their ranks, over so many rows. label: what the model calls the time.
    """

    makes = ("Probe:noise levels", "Probe:noise times")
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._open: list[NamedTable] = []
        self._schedule: _Schedule | None = None
        self._times = NoiseTimes()
        self._levels: list[float] = []
        self._looks = self._vain = self._passes = self._single = self._mixed = 0
        self._over, self._source = False, ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep what a function names beside its pass: it may return before its loss is known."""
        self._passes += 1
        if self._is_done or not forward.gradients or (self._passes > _PASSES and not self._looks):
            return
        made = next((t for t in tensors_in(output) if t.requires_grad and t.dim() > 1), None)
        self._open = list(_find_tables(made.shape, inputs)) if made is not None else []
        if self._open:
            self._times.open(module, inputs)
        if self._looks and self._single < _SURE:
            self._schedule = _find_schedule()

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look for mixtures of which the target is made, too."""
        opened, schedule = self._open, self._schedule
        self._forget()
        if self._is_done or tally.function not in DISTANCES or not value.requires_grad:
            return
        if not isinstance(target, torch.Tensor) or target.requires_grad or not _is_table(target):
            return
        wanted = sample_of(array_of(target))
        tables = [each for each in opened if each.rows.shape == wanted.shape]
        tables = tables if len(tables) > 2 else list(_find_tables(target.shape))
        found = list(find_mixtures(tables, wanted)) if len(tables) > 2 else []
        if found:
            most = max(found, key=lambda mixture: mixture.often(_OFTEN))
            self._times.take(most.levels)
            if not self._over:
                self._take(most, schedule)
            self._source = self._source or tally.source
        self._vain += not found
        self._over |= self._vain >= _VAIN or self._looks >= _LOOKS or len(self._levels) >= _ENOUGH

    @property
    def _is_done(self) -> bool:
        """Whether nothing more is to be known."""
        return self._over and not self._times.is_open

    def _take(self, mixture: NoisyMixture, schedule: "_Schedule | None") -> None:
        """Add what a mixture has of noise, and whether that is the schedule of single steps."""
        self._looks += 1
        self._mixed += not mixture.is_first
        self._levels += mixture.levels.tolist()
        self._over |= float(np.quantile(self._levels, _OFTEN)) >= _NOISY
        if not self._over and self._single < _SURE:
            self._single += (schedule or _find_schedule()).is_of_one_step(mixture.levels)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Forget what nothing was compared with."""
        self._forget()

    def _forget(self) -> None:
        """Keep no numbers of a pass."""
        self._open, self._schedule = [], None

    def finish(self) -> Iterable[Event]:
        """Return how noisy the noisiest were."""
        if not self._levels:
            return
        told = self._times.correlate()
        if told is not None:
            self.looked.add("noise times")
            if abs(told[0]) < _UNRELATED:
                rest = {"label": self._times.name, "source": self._source}
                yield make_probe("noise times", told[0], told[1], **rest)
        self.looked.add("noise levels")
        single = self._single >= _SURE
        most = float(np.quantile(self._levels, _OFTEN if single else 1.0))
        if most < _NOISY and not self._mixed:
            rest = {"label": "one step" if single else "", "source": self._source}
            yield make_probe("noise levels", most, len(self._levels), **rest)


def _is_table(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has rows of numbers that can be looked at."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and has_rows(tensor) and tensor.is_cpu
    real = plain and tensor.dtype in _REAL
    return real and tensor.dim() > 1 and _SMALLEST <= tensor.numel() <= _LARGEST


def _find_tables(shape: torch.Size, inputs: tuple[Any, ...] = ()) -> Iterator[NamedTable]:
    """Yield what the user's running functions call by a name, and inputs, of a shape, each once."""
    seen = set[int]()
    named = [(name, each) for _, name, each in named_tensors()] if not is_transforming() else []
    for name, tensor in [*named, *(("", each) for each in tensors_in(inputs) if named)]:
        fits = len(seen) < _TABLES and _is_table(tensor) and tensor.shape == shape
        if fits and not tensor.requires_grad and start_of(tensor) not in seen:
            seen.add(start_of(tensor))
            yield NamedTable(words_in(name), sample_of(array_of(tensor)))


class _Schedule(NamedTuple):
    """What may be the times of samples, and what may be numbers for each time, with their words."""

    times: list[Table]
    tables: list[tuple[set[str], Table]]

    def is_of_one_step(self, levels: Table) -> bool:
        """Say whether the noise of each row has the variance that is known for one step."""
        for when in (each[: len(levels)] for each in self.times if len(each) >= len(levels)):
            for words, table in self.tables:
                if not 0 <= when.min() <= when.max() < len(table):
                    continue
                if words & _VARIANCES and _are_alike(table[when], levels**2):
                    return True
                for shares in (table, 1 - table):
                    if _are_alike(1 - shares[when], levels**2) and self._multiplies(shares):
                        return True
        return False

    def _multiplies(self, shares: Table) -> bool:
        """Say whether there are the products of the shares that single steps keep, too."""
        products = np.cumprod(shares)
        tables = [table for _, table in self.tables if len(table) == len(products)]
        return any(np.allclose(each, products, 1e-3) for own in tables for each in (own, own**2))


def _are_alike(variances: Table, found: Table) -> bool:
    """Say whether most rows have these variances: none is known where data and noise are alike."""
    return bool(np.isclose(variances, found, *_NEAR).mean() >= _OFTEN)


def _find_schedule() -> _Schedule:
    """Return the whole numbers and the tables of one dimension that the user has by a name."""
    whole = [t for _, _, t in named_tensors() if t.is_cpu and t.dtype in (torch.int64, torch.int32)]
    return _Schedule(
        [np.array(array_of(each)).ravel() for each in whole if each.numel() <= _LONGEST],
        [
            (words_in(name), table.ravel())
            for name, table in (*find_numbers(_SHORTEST, _LONGEST), *_find_constants())
            if table.size == max(table.shape)
        ],
    )


def _find_constants() -> Iterator[tuple[str, Table]]:
    """Yield the tables of one dimension that stand beside the user's running functions."""
    modules = {id(frame.f_globals): frame.f_globals for frame in user_frames(_FRAMES)}
    for name, value in chain.from_iterable(list(each.items()) for each in modules.values()):
        plain = type(value) is torch.Tensor and value.dim() == 1 and has_rows(value)
        if plain and value.is_cpu and value.dtype in _REAL and _SHORTEST <= len(value) <= _LONGEST:
            yield name, np.array(array_of(value), np.float64)
