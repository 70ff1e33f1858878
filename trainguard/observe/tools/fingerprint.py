"""Checksums and fingerprints of tensors: whether a bit has changed, without keeping a copy."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import torch

from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import local_values

_WHOLE = 2**20  # bytes that are hashed as a whole; of a larger tensor, some elements are
_ELEMENTS = 65536
_WORD = 8  # bytes
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SMALL = 65536  # elements of a tensor of which it is seen whether two were exchanged
_ODD = np.arange(1, 2 * _SMALL, 2)
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
    held = inputs.detach().view(torch.int16) if inputs.dtype is torch.bfloat16 else inputs
    array = array_of(held)  # a call of torch takes as long as ten of NumPy
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
        return array_of(flat.view(torch.uint8)).data
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
        bits = _bits(tensor)
        if bits is None:
            return None
        if bits.numel() <= _SMALL:
            return _weigh(bits.view(_INTEGERS[bits.element_size()]))
        if bits.is_contiguous():
            return _add_words(bits)
        # In parts, since a copy is made of each; each begins with a whole word.
        rows = -(-bits.shape[0] // _PARTS // _WORD) * _WORD
        return torch.stack([_add_words(part) for part in torch.split(bits, rows)]).sum()
    except Exception:  # noqa: BLE001 tensors of foreign kinds refuse what they like
        return None


def _bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's values, those of the local part of a distributed one, without a graph."""
    bits = local_values(tensor)
    if bits is None or bits.layout != torch.strided:
        return None
    bits = bits.int_repr() if bits.is_quantized else bits
    return torch.view_as_real(bits.resolve_conj()) if bits.is_complex() else bits


def _add_words(bits: torch.Tensor) -> torch.Tensor:
    """
    Return the sum of a tensor's bits, read as words of 8 bytes in the order of its elements.

    Those are added up several times faster than smaller ones, which torch converts.
    """
    size = bits.element_size()
    flat = bits.reshape(-1)
    whole = flat.numel() * size // _WORD * _WORD // size
    words, rest = flat[:whole], flat[whole:]
    if words.storage_offset() * size % _WORD:  # such bits cannot be viewed as words
        words = words.clone()
    return words.view(torch.int64).sum() + rest.view(_INTEGERS[size]).sum(dtype=torch.int64)


def _weigh(integers: torch.Tensor) -> torch.Tensor:
    """Return a sum of integers in which each place has its own odd weight: exchanges are seen."""
    if integers.device.type == "cpu":  # a call of torch takes as long as ten of NumPy
        values = array_of(integers).reshape(-1)
        return torch.tensor(int(np.dot(values.astype(np.int64), _ODD[: len(values)])))
    long = integers.reshape(-1).to(torch.int64)
    return (long * (torch.arange(len(long), device=long.device) * 2 + 1)).sum()
