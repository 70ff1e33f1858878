"""Counts of the classes that a loss is given as targets, and what they cost a constant."""

from contextlib import suppress

import numpy as np
import torch

from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LOGITS, LossCalls
from trainguard.observe.tools.arrays import array_of

_WIDEST = 2**16  # classes
_WEIGHED = 256  # classes whose weights are told


def are_classes(tally: LossCalls, target: torch.Tensor) -> bool:
    """Say whether the targets are numbers of classes."""
    return tally.function in CROSS_ENTROPIES and not target.is_floating_point()


def count_classes(tally: LossCalls, count: int, target: torch.Tensor) -> torch.Tensor | None:
    """Return how often each class came, those left out that the loss ignores; None if none did."""
    ignored = tally.ignored
    if not 1 < count <= _WIDEST or not target.numel():
        return None
    if ignored < 0 and target.is_cpu:
        with suppress(ValueError):  # some are ignored
            return torch.from_numpy(np.bincount(array_of(target).ravel(), minlength=count))
    flat = target.reshape(-1)
    wanted = (flat >= 0) & (flat < count) & (flat != ignored)
    if flat.is_cpu:
        return torch.bincount(flat[wanted], minlength=count) if wanted.any() else None
    return count_wanted(flat, wanted, count)


def count_wanted(flat: torch.Tensor, wanted: torch.Tensor, count: int) -> torch.Tensor:
    """Return how often each class came among those that are wanted, without waiting for it."""
    # What is left out is counted beside the classes: to drop it would wait for the accelerator.
    places = flat.long().where(wanted, count)
    came = places.new_zeros(count + 1).scatter_add_(0, places, torch.ones_like(places))
    return came[:count]


def lose_rates(tally: LossCalls, rates: torch.Tensor, came: torch.Tensor) -> torch.Tensor:
    """Return the loss of predicting rates of classes, in each of some calls."""
    options = tally.options or {}
    weights = options.get("weight")
    weights = torch.ones_like(rates[0]) if weights is None else weights.to(rates)
    smooth = options.get("label_smoothing", 0.0)
    wanted = ((1 - smooth) * rates + smooth / rates.shape[1]) * weights
    costs = weights * -(wanted / wanted.sum(1, keepdim=True)).clamp_min(1e-30).log()
    samples = came.sum(1)
    lost: torch.Tensor = (1 - smooth) * (came * costs).sum(1) + smooth * samples * costs.mean(1)
    divisor = {"mean": (came * weights).sum(1), "none": samples}.get(tally.reduction, 1)
    return lost.div(divisor)


def class_weights(
    calls: LossCalls, average: torch.Tensor | None, rows: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """
    Return the weights that a loss was given for classes, and how often the classes came.

    average: half more than that for each class; for single probabilities, their mean over rows, of
    which several have how often they came for each time that they did not, times the rows.
    """
    single = calls.function == LOGITS
    weights = (calls.options or {}).get("pos_weight" if single else "weight")
    if weights is None or average is None or weights.numel() > _WEIGHED:
        return (), ()
    if single and weights.numel() == 1:
        rate = float(average.mean())
        return (1.0, float(weights)), ((1 - rate) * rows, rate * rows)
    if weights.dim() != 1 or average.shape != weights.shape:
        return (), ()
    if single:
        odds = average / (1 - average).clamp_min(1 / max(rows, 1))
        return tuple(weights.tolist()), tuple((odds * rows).tolist())
    known = calls.function in CROSS_ENTROPIES
    return (tuple(weights.tolist()), tuple((average - 0.5).tolist())) if known else ((), ())
