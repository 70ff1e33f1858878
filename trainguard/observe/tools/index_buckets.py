"""Finds the lists of numbers of samples that a sampler keeps, such as buckets of one length."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch

_LEAST = 3  # lists that stand together: two may be what is trained on, and what is not
_MOST = 1 << 16  # lists, and numbers in them


def find_buckets(sampler: Any) -> list[list[int]]:
    """
    Return the lists of whole numbers that stand together in an attribute of a sampler.

    No number may be in two of them. Nothing where no attribute has three such lists.
    """
    for value in list(getattr(sampler, "__dict__", {}).values()):
        together = value.values() if isinstance(value, dict) else value
        if not isinstance(value, dict | list | tuple) or not _LEAST <= len(value) <= _MOST:
            continue
        buckets = [bucket for each in together if (bucket := _read_numbers(each)) is not None]
        numbers = [number for bucket in buckets for number in bucket]
        if len(buckets) == len(value) and len(set(numbers)) == len(numbers):
            return buckets
    return []


def find_short_ones(
    buckets: list[list[int]], drawn: Collection[int], batch: int
) -> Iterator[list[int]]:
    """
    Yield the buckets that have fewer numbers than a batch, of which none was ever drawn.

    Nothing where no bucket was drawn from, or a longer one was not: those are left out on purpose.
    """
    idle = [bucket for bucket in buckets if bucket and not any(n in drawn for n in bucket)]
    if len(idle) < sum(map(bool, buckets)) and all(len(bucket) < batch for bucket in idle):
        yield from idle


def _read_numbers(value: Any) -> list[int] | None:
    """Return a list of whole numbers; None where it is none."""
    plain = isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 1
    if plain and isinstance(value, torch.Tensor) and not value.is_cpu:
        return None
    numbers = value.tolist() if plain else value
    if not isinstance(numbers, list | tuple) or len(numbers) > _MOST:
        return None
    return list(numbers) if all(type(number) is int for number in numbers) else None
