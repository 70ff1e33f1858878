"""Tables of numbers in the variables of the user's running functions, by name."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.owners import find_owners

REWARDS = {"r", "rew", "rews", "reward", "rewards"}  # words in their names
# Words in the names of what is the better the larger it is.
PAID = REWARDS | {"adv", "advs", "advantage", "advantages", "gae", "gaes"}
_STEPS = 4096  # of a rollout that is kept as a list of what was seen in each
PAID |= {"ret", "rets", "return", "returns"}


def find_numbers(least: int, most: int) -> Iterator[tuple[str, Table]]:
    """Yield real, finite numbers on the host: tensors, arrays, lists; of so many, copied."""
    for _, _, values in find_owners():
        for name, value in values.items():
            value = _join(value, most) if type(value) is list else value
            if isinstance(name, str) and _holds_numbers(value, least, most):
                here = array_of(value) if isinstance(value, torch.Tensor) else value
                table = np.array(here, np.float64)
                if np.isfinite(table).all():
                    yield name, table


def _join(values: list[Any], most: int) -> Any:
    """Return a list of tensors or arrays of one shape, a step each, as one; others as they are."""
    first = values[0] if 1 < len(values) <= _STEPS else None
    if not isinstance(first, torch.Tensor | np.ndarray) or len(values) * _size(first) > most:
        return values
    able = (_holds_numbers(each, 1, most) and each.shape == first.shape for each in values)
    return np.stack([_read(each) for each in values]) if all(able) else values


def _size(table: Any) -> int:
    """Return how many numbers a tensor or an array has."""
    return table.numel() if isinstance(table, torch.Tensor) else int(table.size)


def _read(table: Any) -> Any:
    """Return the numbers of a tensor or an array."""
    return array_of(table) if isinstance(table, torch.Tensor) else table


def _holds_numbers(value: Any, least: int, most: int) -> bool:
    """Say whether an object is a table of real numbers, of a size that is asked for."""
    if isinstance(value, torch.Tensor):
        here = value.is_cpu and value.layout == torch.strided and not value.is_nested
        real = not value.is_complex() and value.dtype is not torch.bfloat16  # NumPy has none
        return here and real and not value.is_quantized and least <= value.numel() <= most
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf" and least <= value.size <= most
    listed = type(value) is list and least <= len(value) <= most
    return listed and all(isinstance(each, int | float) for each in value)
