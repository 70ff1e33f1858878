"""
Fingerprints of samples, made on the batch: equal rows have equal ones.

A short row is hashed as a whole; of a long one, words at fixed places, spread over all of it and
gathered for all rows of a batch at once. Two rows that agree in all of them seem to be the same:
where that matters, `reading(exact=True)` has all of each row hashed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

_WHOLE = 8192  # bytes of a row that are hashed as they are
_PLACES = 32  # in a longer row, at each of which so many bytes are read
_PIECE = np.dtype("V32")  # half of a cache line, which costs no more than one word of it

Places = np.ndarray[Any, np.dtype[np.intp]]


@dataclass
class Reading:
    """How rows are read: all of each where `exact`; whether one was read in part is told."""

    exact: bool = False
    partial: bool = False


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading(exact: bool) -> Iterator[Reading]:
    """Read the rows of a block in one way."""
    how = Reading(exact)
    token = _reading.set(how)
    try:
        yield how
    finally:
        _reading.reset(token)


def row_prints(values: Sequence[Any], size: int) -> tuple[int, ...]:
    """Return a fingerprint for each of `size` samples, over fields whose first axis they are."""
    each = [_field_prints(value) for value in values]
    each = [prints for prints in each if len(prints) == size]
    if not each:
        return ()
    return tuple(each[0]) if len(each) == 1 else tuple(hash(row) for row in zip(*each, strict=True))


def one_print(value: Any) -> int:
    """Return the fingerprint of one value of any kind."""
    if isinstance(value, torch.Tensor):
        value = _array(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return hash((value.shape, value.tobytes()))
    if isinstance(value, list | tuple):
        return hash(tuple(one_print(entry) for entry in value))
    if isinstance(value, dict):
        return hash(tuple((str(key), one_print(entry)) for key, entry in value.items()))
    if hasattr(value, "tobytes"):  # images
        return hash(value.tobytes())
    try:
        return hash(value)
    except TypeError:
        return hash(repr(value))


def _field_prints(value: Any) -> list[int]:
    """Return the fingerprints of the rows of one field."""
    if isinstance(value, torch.Tensor):
        value = _array(value)
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return [one_print(entry) for entry in value] if isinstance(value, list | tuple) else []
    if value.ndim == 0 or not len(value):
        return []
    if value.ndim == 1 and value.dtype.kind in "iu":
        numbers: list[int] = value.tolist()
        return numbers
    flat = np.ascontiguousarray(value).reshape(len(value), -1).view(np.uint8)
    how = _reading.get() or Reading(exact=True)
    if flat.shape[1] > _WHOLE and not how.exact:
        how.partial = True
        flat = _gather(flat)
    width, data = flat.shape[1], flat.tobytes()
    return [hash(data[i : i + width]) for i in range(0, len(data), width)] if width else []


def _gather(flat: Any) -> Any:
    """Return some pieces of each of many long rows of bytes, as rows of bytes."""
    rows, width = flat.shape
    count, rest = divmod(width, _PIECE.itemsize)
    if not rest:
        return flat.view(_PIECE).take(_places(count), axis=1).view(np.uint8)
    # What is left over at the end of a row puts the next one out of line, which `take` would copy.
    pieces = np.ndarray((rows, count), _PIECE, flat, strides=(width, _PIECE.itemsize))
    return np.ascontiguousarray(pieces[:, _places(count)]).view(np.uint8)


@cache
def _places(count: int) -> Places:
    """Return which pieces of a row are read: a random one of each part."""
    # Random, so that they do not all lie in the margin of an image.
    drawn = np.random.default_rng(0)
    edges = np.linspace(0, count - 1, _PLACES + 1)
    starts: Places = (edges[:-1] + drawn.random(_PLACES) * np.diff(edges)).astype(np.intp)
    return starts


def _array(value: torch.Tensor) -> Any:
    """Return a tensor as an array of the same bytes; types that NumPy lacks as whole numbers."""
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_conj() or value.is_neg() or value.device.type != "cpu":
        value = value.cpu().resolve_conj().resolve_neg()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.contiguous().view(torch.int16)
    elif value.is_floating_point() and value.element_size() == 1:
        value = value.contiguous().view(torch.uint8)
    return value.numpy()
