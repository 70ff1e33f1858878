"""Arrays of NumPy over the numbers of tensors, whose memory stays the user's to resize."""

from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

Array = np.ndarray[Any, np.dtype[Any]]


class _Exported:
    """What NumPy takes a tensor from; the methods of tensors take three times as long."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        """Return the capsule that NumPy asks for."""
        return to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Say that the numbers are on the host."""
        return 1, 0


def array_of(tensor: torch.Tensor) -> Array:
    """
    Return an array over a tensor's numbers, to be read only.

    `Tensor.numpy` is not for what belongs to the user: from then on torch refuses to resize the
    memory, as sharded parameters and buffers for batches of several sizes are.
    Raises what torch or NumPy raise for tensors of other devices, layouts and kinds.
    """
    if tensor.device.type != "cpu":
        raise TypeError(f"its numbers are on {tensor.device}")
    values = tensor.detach()
    if values.is_conj() or values.is_neg():
        values = values.resolve_conj().resolve_neg()
    if values.dtype is torch.bool:  # which not all versions exchange
        return np.from_dlpack(_Exported(values.view(torch.uint8))).view(np.bool_)
    array: Array = np.from_dlpack(_Exported(values))
    return array


def number_in(tensor: torch.Tensor) -> Any:
    """
    Return the only number of a tensor on the host, as it is with `item`, whatever its axes are.

    `item` itself is what people replace to find where a device is waited for.
    """
    number: Any = tensor.tolist()
    while isinstance(number, list):
        (number,) = number
    return number
