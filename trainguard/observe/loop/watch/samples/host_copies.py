"""HostCopies: what tensors on devices were copied of, so that their rows are read on the host."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch

from trainguard.observe.tools.patches import Patches

_MOVES = ("to", "cuda", "xpu", "hpu")  # methods of tensors, where torch has them
_KEPT = 32  # copies: those of a few batches that are loaded ahead


class _Copy(NamedTuple):
    """A tensor on a device, what it was copied of, and their versions at that moment."""

    moved: "weakref.ref[torch.Tensor]"
    host: torch.Tensor
    versions: tuple[int, int]


class HostCopies:
    """
    Batches that `to` or its like has copied to a device, each for as long as the copy is in use.

    What was written to since, on either side, is not known any more.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Copy] = {}  # by the identity of the tensor on the device

    def install(self, patches: Patches, add: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        """Have `add` called with what is copied to a device, and with the copy."""

        def follow(move: Callable[..., Any]) -> Callable[..., Any]:
            """Return a method of tensors that tells of what it copies."""

            @wraps(move)
            def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                """Return the tensor where it was asked to be."""
                moved = move(tensor, *args, **kwargs)
                if moved is not tensor and not moved.is_cpu and patches.live:
                    add(tensor, moved)
                return moved

            return wrapper

        for name in _MOVES:
            patches.replace(torch.Tensor, name, follow)

    def add(self, host: torch.Tensor, moved: torch.Tensor) -> None:
        """Remember that a tensor is a copy of one on the host."""
        if type(moved) is not torch.Tensor or host.requires_grad or moved.dtype != host.dtype:
            return
        if moved.layout != torch.strided or moved.is_inference() or host.is_inference():
            return  # the latter count no versions
        known, key = self._known, id(moved)
        gone = weakref.ref(moved, lambda _: known.pop(key, None))
        known[key] = _Copy(gone, host, (moved._version, host._version))  # noqa: SLF001
        if len(known) > _KEPT:
            del known[next(iter(known))]

    def find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor on the host with the same numbers: itself, or what it was copied of."""
        if tensor.is_cpu:
            return tensor
        base = tensor._base  # noqa: SLF001
        whole = tensor if base is None else base
        copy = self._known.get(id(whole))
        if copy is None or copy.moved() is not whole:
            return None
        if copy.versions != (whole._version, copy.host._version):  # noqa: SLF001
            return None
        return copy.host if base is None else _same_part(copy.host, base, tensor)

    def find_there(self, host: torch.Tensor, device: torch.device) -> torch.Tensor | None:
        """Return a tensor where it is needed: itself, or its copy on the device."""
        if host.device == device:
            return host
        copies = (copy.moved() for copy in self._known.values() if copy.host is host)
        there = (copy for copy in copies if copy is not None and copy.device == device)
        return next((copy for copy in there if self.find(copy) is host), None)


def _same_part(host: torch.Tensor, whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor | None:
    """Return the part of a tensor on the host that a view of its copy shows."""
    alike = host.stride() == whole.stride() and part.dtype == whole.dtype
    if not alike or part.layout != torch.strided:
        return None
    start = host.storage_offset() + part.storage_offset() - whole.storage_offset()
    return host.as_strided(part.size(), part.stride(), start)
