"""Watches columns that learn quantiles: whether each learns the one that a list has for it."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import find_owners, words_in
from trainguard.observe.tools.user_line import caller

_NAMES = {"q", "qs", "quant", "quants", "quantile", "quantiles", "tau", "taus"}
_MOST = 256  # quantiles
_LARGEST = 2**17  # numbers of an output
_OUTPUTS = 2  # of a call
_TRIES = 12  # gradients that are looked at
_KNOWN = 2  # columns that pull to both sides
_SAME = 1e-4  # of a gradient: what rounding leaves of one number
_NEAR = 1e-3  # of a quantile
_MIDDLE = 0.01  # of one half, which is its own opposite

Numbers = NDArray[np.float64]


class QuantileSides(Watcher):
    """
    The Probe event "quantile side": columns that learn other quantiles than a list has for them.

    The gradient of a pinball loss has two values, which tell the quantile. measured: the first
    that is learned; reference: what the list has there; step: how many columns were known; label:
    the name of the list, and the column.
    """

    makes = ("Probe:quantile side",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._left = _TRIES
        self._found: list[Event] = []

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Ask what has columns to tell when it is pulled."""
        if not self._left:
            self.recorder.dismiss(self)
        elif forward.gradients:
            made = [each for each in tensors_in(output) if _has_columns(each)]
            for tensor in made[:_OUTPUTS]:
                self._listen(tensor)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found

    def _listen(self, output: torch.Tensor) -> None:
        """Ask an output to tell when it is pulled."""

        def on_gradient(gradient: torch.Tensor) -> None:
            """Look at it, and change nothing."""
            self._look(gradient)

        output.register_hook(on_gradient)  # type: ignore[no-untyped-call]

    @shielded
    def _look(self, gradient: torch.Tensor) -> None:
        """Find the list that has a number for each column, and compare them."""
        if not self._left or not self.recorder.patches.live:
            return
        learned: list[Numbers] = []
        with suppress(Exception):  # of several gradients at once, which have no numbers
            learned = list(_find_quantiles(gradient.detach()))
        for quantiles in learned:
            for name, named in _find_lists(len(quantiles)):
                self._compare(quantiles, name, named)
        self._left = max(0, self._left - 1)

    def _compare(self, learned: Numbers, name: str, named: Numbers) -> None:
        """Say whether all columns learn what a list has for them, or all the opposite."""
        known = ~np.isnan(learned)
        apart = known & (np.abs(named - 0.5) > _MIDDLE)
        right = bool((np.abs(learned - named)[known] < _NEAR).all())
        wrong = bool((np.abs(1 - learned - named)[known] < _NEAR).all())
        if not self._left or apart.sum() < _KNOWN or not (right or wrong):
            return
        self.looked.add("quantile side")
        self._left = 0
        if wrong:
            place = int(np.flatnonzero(apart)[0])
            probe = make_probe(
                "quantile side",
                learned[place],
                named[place],
                step=int(known.sum()),
                label=f"{name} {place}",
                source=caller(),
            )
            self._found.append(probe)


def _find_quantiles(gradient: torch.Tensor) -> Iterator[Numbers]:
    """Yield what the columns learn, along each axis on which they may lie; nan of one side."""
    array = array_of(gradient)
    for axis in {1, array.ndim - 1}:
        table = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]).astype(np.float64)
        if 1 < table.shape[1] <= _MOST:
            learned = [_quantile_of(column) for column in table.T]
            if None not in learned and not np.isnan(np.array(learned, np.float64)).all():
                yield np.array(learned, np.float64)


def _quantile_of(pulls: Numbers) -> float | None:
    """Return the quantile that gradients of two values belong to; None of other gradients."""
    up, down = -pulls[pulls < 0], pulls[pulls > 0]
    for side in (up, down):
        if len(side) and float(np.ptp(side)) > _SAME * float(side.max()):
            return None
    return float(up[0] / (up[0] + down[0])) if len(up) and len(down) else float("nan")


def _find_lists(count: int) -> Iterator[tuple[str, Numbers]]:
    """Yield the variables with the name of quantiles, of so many different ones."""
    for _, _, values in find_owners():
        for name, value in values.items():
            if isinstance(name, str) and words_in(name.replace("_", " ")) & _NAMES:
                numbers = _numbers_of(value)
                if numbers is not None and len(numbers) == count == len(np.unique(numbers)):
                    yield name, numbers


def _numbers_of(value: Any) -> Numbers | None:
    """Return numbers between 0 and 1 on the host as a vector."""
    if isinstance(value, torch.Tensor):
        able = value.is_cpu and has_rows(value) and value.dtype in (torch.float32, torch.float64)
        value = array_of(value) if able and value.numel() <= _MOST else None
    elif type(value) in (list, tuple):
        value = value if all(isinstance(each, float) for each in value) else None
    elif not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return None
    if value is None or not 1 < np.size(value) <= _MOST:
        return None
    numbers = np.asarray(value, np.float64).reshape(-1)
    return numbers if bool(((numbers > 0) & (numbers < 1)).all()) else None


def _has_columns(output: torch.Tensor) -> bool:
    """Say whether an output has columns that may be quantiles, and is cheap to look at."""
    plain = type(output) is torch.Tensor and output.is_cpu and output.grad_fn is not None
    able = plain and output.is_floating_point() and output.dtype is not torch.bfloat16
    return able and 1 < output.dim() < 5 and 1 < output.numel() <= _LARGEST
