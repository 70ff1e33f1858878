"""Whether weights still are what torch draws for a new layer, as their distribution tells."""

from collections.abc import Callable
from math import erf, sqrt
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from trainguard.observe.loop.watch.parameters.loaded_values import LoadedValues
from trainguard.observe.loop.watch.parameters.parameter_history import ParameterHistory
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import has_memory

_LEAST: Final = 64  # elements: fewer may lie within the bounds by chance, whatever they are
_SAMPLED: Final = 4096
_ROUNDING: Final = 4e-3  # of a bound, in bfloat16
_CRITICAL: Final = 1.95  # of Kolmogorov and Smirnov at 0.1 %, times the root of the samples


def look_at_draws(recorder: Any, find: Callable[[torch.Tensor], ParameterHistory | None]) -> None:
    """See which parameters that no optimizer moves are new, and which something was loaded into."""
    if not recorder.steps:  # what optimizers hold is not known
        return
    loads = recorder.watcher(LoadedValues)
    for module in [part for root in recorder.names.roots() for part in root.modules()]:
        for weight in module._parameters.values():  # noqa: SLF001 methods are overridden
            seen = find(weight) if weight is not None else None
            if weight is None or seen is None or (seen.groups and True in seen.required):
                continue
            seen.loaded |= loads.knows(weight)
            if seen.drawn is None:
                # What is asked without a graph is a target, which may well stay as it was drawn.
                asked = id(module) in recorder.graphless
                seen.drawn = not asked and is_as_drawn(module, weight)


def is_as_drawn(module: nn.Module, weight: torch.Tensor) -> bool:
    """Say whether a weight of a module has the distribution that torch initialises it with."""
    here = weight.is_cpu and has_memory(weight) and weight.is_floating_point()
    if not here or weight.dim() < 2 or weight.numel() < _LEAST:
        return False
    values = array_of(sample_elements(weight, _SAMPLED).double().flatten())
    if isinstance(module, nn.Embedding):
        kept = values[values != 0]  # a row for padding is zero
        return len(kept) >= _LEAST and _fits(np.array([(1 + erf(v / sqrt(2))) / 2 for v in kept]))
    bound = _find_bound(module, weight)
    if not bound or np.abs(values).max() > bound * (1 + _ROUNDING):
        return False
    return _fits((values / bound + 1) / 2)


def _find_bound(module: nn.Module, weight: torch.Tensor) -> float:
    """Return between which numbers torch draws a weight of this kind of layer; 0 if unknown."""
    if isinstance(module, nn.RNNBase):
        return 1 / sqrt(module.hidden_size)
    if isinstance(module, nn.Linear | _ConvNd) and weight is module._parameters.get("weight"):  # noqa: SLF001
        return 1 / sqrt(weight.shape[1:].numel())
    return 0.0


def _fits(shares: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> bool:
    """Say whether numbers are spread evenly from 0 to 1."""
    ordered, count = np.sort(shares), len(shares)
    steps = np.arange(count + 1) / count
    apart = max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max())
    return bool(apart < _CRITICAL / sqrt(count))
