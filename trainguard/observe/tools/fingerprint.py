"""Checksums and fingerprints of tensors: whether a bit has changed, without keeping a copy."""

from collections.abc import Iterable, Sequence
from zlib import crc32

import torch

from trainguard.observe.tools.local_values import local_values

_WHOLE = 2**20  # bytes that are hashed as a whole; of a larger tensor, some elements are
_ELEMENTS = 65536
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SMALL = 65536  # elements of a tensor, or of a part of one, that are turned into int64 at once
_PARTS = 64


def fingerprint(tensors: Iterable[torch.Tensor]) -> int:
    """Return one number for some tensors; 0 where one of them cannot be read without waiting."""
    found = 0
    for tensor in tensors:
        data = bytes_of(tensor)
        if data is None:
            return 0
        found = crc32(data, found)
    return found


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
    return values.reshape(-1)[:: values.numel() // elements | 1][:elements]


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
