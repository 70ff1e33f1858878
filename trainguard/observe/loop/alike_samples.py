"""Whether all samples of a batch got one output, though their inputs and targets differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainguard.observe.tools.arrays import array_of

_DEPENDS = 1e-4  # of a logit, or of the spread of the targets: less is no answer to an input
_NUMPY = {torch.float32, torch.float64, torch.int64, torch.uint8}  # dtypes that are NumPy's too
_ROWS, _COLUMNS = 16, 4096  # of a batch, that are compared with each other
_ROUNDING = 1e-6  # of two numbers, beyond what they lose as float32

Number = Any  # a float, on an accelerator a tensor that is fetched at the end


@dataclass(slots=True)
class AlikeSamples:
    """
    What is known of the calls of one place.

    alike: calls in a row, up to now, in which all samples got the same output, though neither
        their inputs nor their targets were the same. blank: calls in which all inputs were.
    """

    alike: Number = 0
    blank: Number = 0

    def add(
        self,
        distance: int,
        given: torch.Tensor,
        scores: torch.Tensor,
        target: torch.Tensor,
        in_units: bool,
        beside: Callable[[], Sequence[torch.Tensor]] = tuple,
    ) -> None:
        """
        Count a call that stands for so many.

        in_units: whether outputs are in the units of the targets. beside: returns what else the
        model was given; a state of zeros may come before what a sample is told by.
        """
        if given.dim() < 2 or len(given) < 2 or scores.dim() < 1 or not distance:
            return
        is_clear = self._is_untouched() and _are_surely_apart(given, 0.0)
        if is_clear and _are_surely_apart(
            scores, _DEPENDS * (_spread(target) if in_units else 1.0)
        ):
            return  # most often: there is nothing to add, and nothing to take back
        # In sums and products, which may be of tensors: no branch waits for an accelerator.
        wanted, apart = _spread(target), _differ(given)
        if type(apart) is not int or not apart:
            apart = 1 - math.prod([1 - apart, *(1 - _differ(rows) for rows in beside())])
        is_alike = apart * (_spread(scores) <= _DEPENDS * (wanted if in_units else 1.0))
        tells = wanted != 0
        self.blank += tells * ((self.blank + distance) * (1 - apart) - self.blank)
        self.alike += tells * ((self.alike + distance) * is_alike - self.alike)

    def _is_untouched(self) -> bool:
        """Say whether nothing is counted now; a tensor may be anything, and is not waited for."""
        return type(self.alike) is int and type(self.blank) is int and not self.alike | self.blank

    def describe(self) -> dict[str, Any]:
        """Return columns of a BaselineFit."""
        return {"alike": int(self.alike), "blank": int(self.blank)}


def mean_of(value: torch.Tensor) -> Number:
    """Return the mean of what a loss function returned, as a number where that does not wait."""
    if value.is_cpu and not value.dim():
        return value.tolist()
    mean = value.detach().mean() if value.dim() else value.detach()
    return mean.tolist() if mean.is_cpu else mean.clone()


def _are_surely_apart(rows: torch.Tensor, least: float) -> bool:
    """Say whether one number of the first two samples shows them to be further apart than that."""
    if not rows.is_cpu or rows.dtype not in _NUMPY or rows.shape[0] < 2 or not rows.numel():
        return False
    array = array_of(rows)
    width = array.size // len(array)
    place = min(width, _COLUMNS) // 2  # pictures are dark at their edges
    one, other = array.item(place), array.item(width + place)
    return bool(abs(one - other) > 1.01 * least + _ROUNDING * (abs(one) + abs(other)))


def _differ(rows: torch.Tensor) -> Number:
    """Return 1 where the first samples of a batch are not all the same, else 0."""
    if rows.is_cpu and rows.dtype in _NUMPY and rows.shape[0] > 1:
        first, second = array_of(rows.detach()[:2]).reshape(2, -1)[:, :_COLUMNS]
        if (first != second).any():  # most often: the others need not be read
            return 1
    return 1 * (_spread(rows) != 0)


def _spread(rows: torch.Tensor) -> Number:
    """Return how far the first samples of a batch are from each other at most."""
    if rows.is_cpu and rows.dtype in _NUMPY:  # which is faster with few
        first = array_of(rows)[:_ROWS]
        values = first.reshape(len(first), -1)[:, :_COLUMNS].astype(np.float32, copy=False)
        with np.errstate(invalid="ignore"):  # of a model that is lost, infinite numbers
            return float(np.abs(values - values[:1]).max()) if values.size else 0.0
    few = rows[:_ROWS].reshape(min(len(rows), _ROWS), -1)[:, :_COLUMNS].float()
    spread = (few - few[:1]).abs().max() if few.numel() else few.sum()
    return spread.tolist() if spread.is_cpu else spread
