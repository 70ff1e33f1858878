"""Holds the noise of samples against the times that a model is told beside them."""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import forward_of

_NAMES = {"level", "levels", "sigma", "sigmas", "t", "time", "times", "timestep", "timesteps"}
_ENOUGH = 512  # rows: independent numbers of so many correlate by 0.2 less than once in 100,000
_DIFFERENT = 8  # times, and levels
_LATE = 8  # passes with a time, without noise in their input, after which no more is waited for


class NoiseTimes:
    """
    How noisy samples were, and what time of each the model was told.

    name: of the argument. is_open: whether more samples are waited for.
    """

    def __init__(self) -> None:
        self.name = ""
        self._time: Table | None = None
        self._passes = 0
        self._levels: list[float] = []
        self._times: list[float] = []

    @property
    def is_open(self) -> bool:
        """Whether samples with a time have come, and not enough of them."""
        waits = bool(self._levels) or self._passes < _LATE
        return bool(self.name) and len(self._levels) < _ENOUGH and waits

    def open(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep the times that a module is given in a pass."""
        self._time = None
        if self.name and not self.is_open:
            return
        for name, time in _find_times(module, inputs):
            self.name = self.name or name
            if name == self.name:
                self._time = array_of(time).astype(np.float64).ravel()
                self._passes += 1

    def take(self, levels: Table) -> None:
        """Add how much noise is in each of the first samples of a pass."""
        if self._time is not None and len(self._time) >= len(levels):
            self._levels += levels.tolist()
            self._times += self._time[: len(levels)].tolist()
        self._time = None

    def correlate(self) -> tuple[float, int] | None:
        """Return the correlation of the ranks of noise and times, and of how many; or None."""
        both = np.array([self._levels, self._times])
        if both.shape[1] < _ENOUGH or min(len(np.unique(each)) for each in both) < _DIFFERENT:
            return None
        levels, times = both.argsort(axis=1, kind="stable").argsort(axis=1)
        return float(np.corrcoef(levels, times)[0, 1]), both.shape[1]


def _find_times(module: nn.Module, inputs: tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the inputs with a number for each sample that a module calls a time."""
    try:
        names = list(inspect.signature(forward_of(module)).parameters)[1:]
    except (TypeError, ValueError):
        return
    for name, given in zip(names, inputs, strict=False):
        plain = isinstance(given, torch.Tensor) and given.is_cpu and has_rows(given)
        if plain and words_in(name) & _NAMES and given.numel() == len(given) > 1:
            yield name, given.detach()
