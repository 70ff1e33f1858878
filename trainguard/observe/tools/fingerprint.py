"""Checksums and fingerprints of tensors: whether a bit has changed, without keeping a copy."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import torch

from trainguard.observe.tools.local_values import local_values

_WHOLE = 2**20  # bytes that are hashed as a whole; of a larger tensor, some elements are
_ELEMENTS = 65536
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SMALL = 65536  # elements of a tensor, or of a part of one, that are turned into int64 at once
_PARTS = 64
_ROW = 16384  # elements of a row that are looked at
_LINE = 8192  # bytes that become one number before they are hashed

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def fingerprint(tensors: Iterable[torch.Tensor]) -> int:
    """Return one number for some tensors; 0 where one of them cannot be read without waiting."""
    found = 0
    for tensor in tensors:
        data = bytes_of(tensor)
        if data is None:
            return 0
        whole = len(data) // _LINE * _LINE
        if whole:  # of long data a checksum is the dearer part
            lines = np.frombuffer(data[:whole], np.uint64).reshape(-1, _LINE // 8)
            found = crc32(hash_words(lines).tobytes(), found)
        found = crc32(data[whole:], found)
    return found


def hash_rows(inputs: torch.Tensor) -> list[int]:
    """Return a hash of each row of an input, as numbers of Python's."""
    hashes: list[int] = hashes_of_rows(inputs).tolist()
    return hashes


def hashes_of_rows(inputs: torch.Tensor) -> Hashes:
    """Return a hash of each row of an input; of a long row, of elements all along it."""
    held = inputs.detach() if inputs.requires_grad else inputs
    if held.dtype is torch.bfloat16:  # which NumPy has not
        held = held.view(torch.int16)
    array = held.numpy()  # a call of torch takes as long as ten of NumPy
    rows = array if array.ndim == 2 and len(array) else array.reshape(len(array), -1)
    if rows.shape[1] > _ROW:
        rows = rows[:, :: rows.shape[1] // _ROW | 1]
    if rows.flags.c_contiguous and not rows.shape[1] * rows.itemsize % 8 and rows.shape[1]:
        return hash_words(rows.view(np.uint64))
    data = np.ascontiguousarray(rows).view(np.uint8)
    if data.shape[1] % 8:
        data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8)))
    return hash_words(data.view(np.uint64))


def hash_words(words: Hashes) -> Hashes:
    """Return a hash of each row of a matrix of words."""
    # Round numbers differ in their upper bits alone, of which a product keeps hardly any.
    mixed = words >> np.uint64(32)
    mixed ^= words
    hashes: Hashes = np.dot(mixed, _weights(words.shape[1]))  # twice as fast as `@` of integers
    return hashes


@lru_cache(maxsize=8)
def _weights(count: int) -> Hashes:
    """Return odd random numbers: two different rows hardly ever have the same sum of products."""
    drawn = np.random.default_rng(0).integers(2**64 - 1, size=count, dtype=np.uint64)
    return drawn | np.uint64(1)


def bytes_of(tensor: torch.Tensor) -> memoryview | None:
    """Return the bytes of a tensor, of a large one a part; None where it is on another device."""
    try:
        values = local_values(tensor)
        if values is None or values.device.type != "cpu" or values.layout != torch.strided:
            return None
        if values.numel() * values.element_size() > _WHOLE:
            values = sample_elements(values, _ELEMENTS)
        flat = values.contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data
    except Exception:  # noqa: BLE001 tensors of foreign kinds refuse what they like
        return None


def checksums(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """
    Return a number for each tensor that changes with its bits; None for one that has no bits.

    Devices are waited for once each. Tensors on the meta device, sparse ones and those of foreign
    kinds have no checksum.
    """
    sums = [sum_bits(tensor) for tensor in tensors]
    found: list[int | None] = [None] * len(sums)
    for device in {total.device for total in sums if total is not None}:
        places = [i for i, total in enumerate(sums) if total is not None and total.device == device]
        try:
            numbers = torch.stack([total for i in places if (total := sums[i]) is not None])
            for place, number in zip(places, numbers.tolist(), strict=True):
                found[place] = number
        except Exception:  # noqa: BLE001, S112 a fake tensor, for one, has no numbers
            continue
    return found


def sample_elements(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """Return so many elements of a tensor at most, evenly spread, as a vector; no graph is kept."""
    values = local_values(tensor)
    if values is None:
        return torch.empty(0, dtype=tensor.dtype)
    if values.layout != torch.strided or values.numel() <= elements:
        return values if values.layout != torch.strided else values.reshape(-1)
    # An odd stride, so that it does not stay in one column.
    stride = values.numel() // elements | 1
    return values.reshape(-1)[: elements * stride : stride]


def sum_bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the sum of a tensor's bits, read as integers, on its device."""
    try:
        words = _words(tensor)
        if words is None:
            return None
        if words.numel() <= _SMALL:
            # Each place has its own odd weight: values that change places are seen.
            long = words.reshape(-1).to(torch.int64)
            weights = torch.arange(long.numel(), device=long.device) * 2 + 1
            return (long * weights).sum()
        # In parts, since torch makes an int64 copy of what it sums.
        parts = min(_PARTS, words.numel() // _SMALL + 1)
        rows = -(-words.shape[0] // parts)
        starts = range(0, words.shape[0], rows)
        sums = [words[start : start + rows].sum(dtype=torch.int64) for start in starts]
        return torch.stack(sums).sum()
    except Exception:  # noqa: BLE001 tensors of foreign kinds refuse what they like
        return None


def _words(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a view of a tensor's bits as integers; of the local part of a distributed one."""
    bits = local_values(tensor)
    if bits is None or bits.layout != torch.strided:
        return None
    bits = bits.int_repr() if bits.is_quantized else bits
    bits = torch.view_as_real(bits.resolve_conj()) if bits.is_complex() else bits
    words: torch.Tensor = bits.view(_WORDS[bits.element_size()])
    return words
