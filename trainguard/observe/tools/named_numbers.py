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
PAID |= {"ret", "rets", "return", "returns"}


def find_numbers(least: int, most: int) -> Iterator[tuple[str, Table]]:
    """Yield real, finite numbers on the host: tensors, arrays, lists; of so many, copied."""
    for _, _, values in find_owners():
        for name, value in values.items():
            if isinstance(name, str) and _holds_numbers(value, least, most):
                here = array_of(value) if isinstance(value, torch.Tensor) else value
                table = np.array(here, np.float64)
                if np.isfinite(table).all():
                    yield name, table


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
