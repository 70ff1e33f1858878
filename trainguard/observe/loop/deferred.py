"""Numbers that are still tensors: fetched together, once per step, and not before they must be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ReadWith = Callable[[list[torch.Tensor]], list[torch.Tensor]]

_PLAIN = frozenset((bool, int, float, str))  # most columns: told apart without much ado
Waiting = dict[str, list[torch.Tensor]]  # the tensors in columns that have some


@dataclass(frozen=True, slots=True)
class Deferred:
    """What will be made of a tensor of numbers once they are fetched."""

    tensor: torch.Tensor
    make: Callable[[list[float]], Any]


def is_on_accelerator(waiting: Waiting) -> bool:
    """Say whether fetching columns would wait for a device other than the CPU."""
    return any(not tensor.is_cpu for tensors in waiting.values() for tensor in tensors)


def fetch(
    columns: dict[str, Any], waiting: Waiting | None = None, read: ReadWith | None = None
) -> dict[str, Any]:
    """
    Return the columns with every tensor turned into numbers, in one transfer per device.

    read: what copies tensors to the host, where other numbers are to come in the same transfer.
    """
    waiting = find_waiting(columns) if waiting is None else waiting
    tensors = {id(tensor): tensor for own in waiting.values() for tensor in own}
    numbers = _numbers(tensors, read or to_host)
    return columns | {name: _settle(columns[name], numbers) for name in waiting}


def _numbers(tensors: dict[int, torch.Tensor], read: ReadWith) -> dict[int, list[float]]:
    """Fetch each tensor as a list of numbers; those of one accelerator come in one transfer."""
    numbers: dict[int, list[float]] = {}
    away: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for key, tensor in tensors.items():
        if tensor.is_cpu:
            values = (tensor.reshape(-1) if tensor.dim() > 1 else tensor).tolist()
            numbers[key] = values if isinstance(values, list) else [values]
        else:
            away.setdefault(tensor.device, []).append((key, tensor))
    packed = [
        torch.cat([tensor.detach().reshape(-1).double() for _, tensor in waiting])
        for waiting in away.values()
    ]
    for waiting, here in zip(away.values(), read(packed) if packed else (), strict=True):
        values, position = here.tolist(), 0
        for key, tensor in waiting:
            numbers[key] = values[position : position + tensor.numel()]
            position += tensor.numel()
    return numbers


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of tensors in the memory of the host, in one transfer per device."""
    found: list[torch.Tensor] = [
        tensor.detach().cpu() if tensor.is_cpu else tensor for tensor in tensors
    ]
    for device in {tensor.device for tensor in tensors if not tensor.is_cpu}:
        places = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        parts = [tensors[i].detach().reshape(-1).view(torch.uint8) for i in places]
        bytes_, position = torch.cat(parts).cpu(), 0
        for i, part in zip(places, parts, strict=True):
            own = bytes_[position : position + len(part)].clone()  # from an address for its dtype
            found[i] = own.view(tensors[i].dtype).reshape(tensors[i].shape)
            position += len(part)
    return found


def _settle(value: Any, numbers: dict[int, list[float]]) -> Any:
    """Return a column with its tensors replaced by numbers."""
    kind = type(value)
    if kind is Deferred:
        return value.make(numbers[id(value.tensor)])
    if kind is tuple:
        return tuple(numbers[id(v)][0] if isinstance(v, torch.Tensor) else v for v in value)
    return numbers[id(value)][0] if isinstance(value, torch.Tensor) else value


def find_waiting(columns: dict[str, Any]) -> Waiting:
    """Return the tensors in the columns that have some, inside of tuples too."""
    found: Waiting = {}
    rest = [(name, value) for name, value in columns.items() if type(value) not in _PLAIN]
    for name, value in rest:
        kind = type(value)
        if kind is tuple and _PLAIN.issuperset(map(type, value)):
            continue
        entries = value if kind is tuple else (value.tensor if kind is Deferred else value,)
        own = [entry for entry in entries if isinstance(entry, torch.Tensor)]
        if own:
            found[name] = own
    return found
