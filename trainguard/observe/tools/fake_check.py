"""Whether tensors have values now: under a tracer, or as fakes, they only have shapes."""

from collections.abc import Callable

import torch
from torch._guards import detect_fake_mode

_is_tracing: Callable[[], bool] = torch._C._is_tracing  # noqa: SLF001 the public one asks more
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # noqa: SLF001 there is no other


def is_abstract() -> bool:
    """Say whether what runs now is traced, or runs on tensors without values."""
    return _is_tracing() or (_modes() > 0 and detect_fake_mode() is not None)
