"""One number for all that a batch or a sample holds; the same one in each process."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch

_DEEP = 12
_LONG = 1 << 16  # bytes


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
        _take_bytes(digest, flat.view(torch.uint8).numpy().data)


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
