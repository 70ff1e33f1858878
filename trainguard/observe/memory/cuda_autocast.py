"""
What autocast makes of operations on CUDA, where that of the cpu leaves them as they are.

Norms, exponentials and sums are of float32 there, and so is what they keep for backward. Fake
tensors claim to be on the cpu, and are under its autocast.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

# torch's own lists (`autocast_mode.h`), where CUDA's have more than the cpu's; without `norm`,
# whose overloads it calls by other signatures.
_WIDENED = (
    "acos", "asin", "cosh", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "group_norm",
    "layer_norm", "log", "log10", "log1p", "log2", "logsumexp", "native_layer_norm", "pdist",
    "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "reciprocal", "renorm", "rms_norm",
    "rsqrt", "sinh", "softplus", "tan", "upsample_bicubic2d", "upsample_bilinear2d",
    "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_trilinear3d",
)  # fmt: skip
# These are told to return float32, unless the call says what they return.
_RETURNING = (
    "cumprod", "cumsum", "linalg_matrix_norm", "linalg_vector_norm", "log_softmax.int",
    "softmax.int", "sum", "sum.dim_IntList",
)  # fmt: skip
_HALF = (torch.float16, torch.bfloat16)
_KEY = "AutocastCPU"
_EXCLUDED: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001
_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001


def widen(library: Any) -> None:
    """Let a library of operators give those of the lists float32 under autocast."""
    for names, make in ((_WIDENED, _widened), (_RETURNING, _returning)):
        for name in names:
            packet, _, overload = name.partition(".")
            if _differs(f"aten::{name}"):
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(name, make(operator), _KEY)


def _differs(name: str) -> bool:
    """Say whether this torch has an operator in CUDA's lists, and not in those of the cpu."""
    try:
        return _has_kernel(name, "AutocastCUDA") and not _has_kernel(name, _KEY)
    except RuntimeError:  # there is no such operator
        return False


def _widened(operator: Any) -> Callable[..., Any]:
    """Return an operator on what it is given in float32."""

    def wrapper(*given: Any, **named: Any) -> Any:
        """Widen what is given."""
        return _beneath(operator, *tree_map(_as_float32, given), **tree_map(_as_float32, named))

    return wrapper


def _returning(operator: Any) -> Callable[..., Any]:
    """Return an operator that returns float32, unless it is told another dtype."""
    takes = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001

    def wrapper(*given: Any, **named: Any) -> Any:
        """Say what is returned."""
        told = {**dict(zip(takes, given, strict=False)), **named}
        if _is_half(given[0]) and told.get("dtype") is None:
            told["dtype"] = torch.float32
        first = told.pop(takes[0])
        return _beneath(operator, first, **told)

    return wrapper


def _beneath(operator: Any, *given: Any, **named: Any) -> Any:
    """Call an operator, without autocast for all that it calls."""
    with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):  # noqa: SLF001 as torch's own kernels do
        return operator(*given, **named)


def _as_float32(value: Any) -> Any:
    """Return a fake tensor of low precision in float32, and anything else as it is."""
    return value.to(torch.float32) if _is_half(value) else value


def _is_half(value: Any) -> bool:
    """Say whether something is a fake tensor of low precision; real ones stay on the cpu."""
    return isinstance(value, FakeTensor) and value.dtype in _HALF
