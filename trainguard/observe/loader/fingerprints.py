"""
Fingerprints of samples, made on the batch, and one number for all that a batch holds.

A short row is hashed as a whole; of a long one, words at fixed places, spread over all of it and
gathered for all rows of a batch at once. Two rows that agree in all of them seem to be the same:
where that matters, `reading(exact=True)` has all of each row hashed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch

from trainguard.observe.loader.ends import Ends
from trainguard.observe.tools.arrays import array_of

_DEEP = 12
_LONG = 1 << 16  # bytes
_WHOLE = 8192  # bytes of a row that are hashed as they are
_PLACES = 32  # in a longer row, at each of which so many bytes are read
_PIECE = np.dtype("V32")  # half of a cache line, which costs no more than one word of it
Places = np.ndarray[Any, np.dtype[np.intp]]


def likeness(thing: Any) -> int:
    """
    Return a number that equal things share: tensors, arrays, containers and plain values.

    What is none of these counts by its attributes, never by its address in memory.
    """
    digest = blake2b(digest_size=7)  # 56 bits: they stay what they are in JSON
    _take(digest, thing, 0)
    return int.from_bytes(digest.digest(), "big")


def _take(digest: Any, thing: Any, depth: int) -> None:
    """Feed a thing to a digest, at every depth."""
    digest.update(type(thing).__name__.encode())
    if isinstance(thing, torch.Tensor):
        _take_tensor(digest, thing)
    elif isinstance(thing, np.ndarray | np.generic) and thing.dtype != object:
        digest.update(f"{thing.dtype}{thing.shape}".encode())
        _take_bytes(digest, np.ascontiguousarray(thing).reshape(-1).view(np.uint8).data)
    elif isinstance(thing, bytes | bytearray | memoryview):
        _take_bytes(digest, memoryview(thing))
    elif isinstance(thing, str | int | float | complex | bool | type(None)):
        digest.update(repr(thing).encode())
    elif depth < _DEEP:
        for part in _parts(thing):
            _take(digest, part, depth + 1)


def _take_tensor(digest: Any, tensor: torch.Tensor) -> None:
    """Feed the shape and the bytes of a tensor to a digest."""
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    flat = dense.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel():
        _take_bytes(digest, array_of(flat.view(torch.uint8)).data)


def _take_bytes(digest: Any, data: memoryview) -> None:
    """Feed bytes to a digest; of many, a checksum, which is several times as fast."""
    digest.update(crc32(data).to_bytes(4, "big") if data.nbytes > _LONG else data)


def _parts(thing: Any) -> list[Any]:
    """Return the parts of a thing in an order that is its own."""
    if isinstance(thing, Mapping):
        return [part for pair in thing.items() for part in pair]
    if isinstance(thing, set | frozenset):
        return sorted(thing, key=repr)
    if isinstance(thing, list | tuple | np.ndarray):
        return list(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, column.name) for column in fields(thing)]
    if callable(getattr(thing, "tobytes", None)):
        return [thing.tobytes()]  # an image
    return [part for pair in (getattr(thing, "__dict__", None) or {}).items() for part in pair]


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


def row_prints(
    values: Sequence[Any], size: int, ends: Sequence[Ends | None] = ()
) -> tuple[int, ...]:
    """
    Return a fingerprint for each of `size` samples, over fields whose first axis they are.

    What fills rows up to the longest of their batch is left out where `ends` says how.
    """
    ends = ends or [None] * len(values)
    each = [_field_prints(value, end) for value, end in zip(values, ends, strict=True)]
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


def _field_prints(value: Any, ends: Ends | None) -> list[int]:
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
    value, kept = ends.trim(value) if ends else (value, [])
    flat = np.ascontiguousarray(value).reshape(len(value), -1).view(np.uint8)
    how = _reading.get() or Reading(exact=True)
    if kept:
        return [_row_print(row[:own], how) for row, own in zip(flat, kept, strict=True)]
    if flat.shape[1] > _WHOLE and not how.exact:
        how.partial = True
        flat = _gather(flat)
    width, data = flat.shape[1], flat.tobytes()
    return [hash(data[i : i + width]) for i in range(0, len(data), width)] if width else []


def _row_print(row: Any, how: Reading) -> int:
    """Return the fingerprint of the bytes of one row, the same that it has among others."""
    if len(row) > _WHOLE and not how.exact:
        how.partial = True
        row = _gather(row[None])
    return hash(row.tobytes())


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
    return array_of(value)
