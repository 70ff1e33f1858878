"""Modes of dispatch: whether tensors have values now, and tensors that can only be read."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode

from trainguard.observe.loop.locate_nonfinite import tensors_in

_is_tracing: Callable[[], bool] = torch._C._is_tracing  # noqa: SLF001 the public one asks more
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # noqa: SLF001 there is no other


def is_abstract() -> bool:
    """Say whether what runs now is traced, or runs on tensors without values."""
    return _is_tracing() or (_modes() > 0 and detect_fake_mode() is not None)


class WriteRefusedError(RuntimeError):
    """Raised by an operator that would have written to a tensor that is not to be touched."""


class ReadOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Refuses operators that write to the memory of some tensors, also through their `data`.

    It sees what passes through torch's dispatcher: NumPy and kernels of other makers do not.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = {_place(tensor) for tensor in tensors}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, unless it writes to what is kept."""
        named = kwargs or {}
        if func._schema.is_mutable:  # noqa: SLF001 there is no other way to learn of it
            for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                given = args[place] if place < len(args) else named.get(argument.name)
                if any(_place(tensor) in self._kept for tensor in tensors_in(given)):
                    raise WriteRefusedError(f"{func} would write to what is only to be read")
        return func(*args, **named)


def _place(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor is; the same for all its views."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 the data of empty ones is at 0
