"""The memory of a tensor: what has none must not be read, not even by torch; and where it lies."""

from typing import Any

import torch

_peek = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 no other way to ask


def local_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """
    Return a tensor without its graph, the local part of a distributed one; None without memory.

    Tensors on the meta device have none, nor do those whose storage was resized to nothing, as the
    whole parameters of sharded modules are between their uses. To read those ends the process.
    """
    values: Any = tensor.detach()
    if type(values) is not torch.Tensor:  # those of other kinds alone are asked
        local = getattr(values, "to_local", None)
        values = values if local is None else local()
    return values if has_memory(values) else None


def has_memory(tensor: torch.Tensor) -> bool:
    """Say whether there is something to be read where a tensor says that it lies."""
    if tensor.is_meta:
        return False
    if tensor.layout != torch.strided or not tensor.numel():
        return True
    try:
        return tensor.untyped_storage().nbytes() > 0
    except Exception:  # noqa: BLE001 inside a transformation of torch.func there is no storage
        return False


def is_transforming() -> bool:
    """Say whether a transformation of torch.func is going on, whose tensors have no values yet."""
    return _peek() is not None


def has_rows(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has rows to be counted and read: none that is sparse, nested or meta."""
    return tensor.layout == torch.strided and not tensor.is_nested and has_memory(tensor)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Say whether other processes have parts of a tensor, so that the local one tells no norm."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    return mesh is not None and mesh.size() > 1


def storage_of(tensor: torch.Tensor) -> int:
    """
    Return the place of all numbers that a tensor is a view of.

    Sparse, fake and meta tensors have no numbers that can be read: `data_ptr` raises, or is 0 for
    all of them. The place of such a one is that of the object itself.
    """
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def start_of(tensor: torch.Tensor) -> int:
    """Return the place of the first number of a tensor: parts of one table are told apart."""
    try:
        return tensor.data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)
