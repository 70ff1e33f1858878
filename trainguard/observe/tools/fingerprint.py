"""Fingerprints of tensors on the CPU: the same in every process, other ones for other bytes."""

from collections.abc import Iterable
from zlib import crc32

import torch

from trainguard.observe.tools.checksum import sample_elements

_WHOLE = 2**20  # bytes that are hashed as a whole; of a larger tensor, some elements are
_ELEMENTS = 65536


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
        values = tensor.detach()
        if values.device.type != "cpu" or values.layout != torch.strided:
            return None
        if values.numel() * values.element_size() > _WHOLE:
            values = sample_elements(values, _ELEMENTS)
        flat = values.contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data
    except Exception:  # noqa: BLE001 tensors of foreign kinds refuse what they like
        return None
