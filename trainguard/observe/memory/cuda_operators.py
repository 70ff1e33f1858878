"""
What CUDA does in the place of what the cpu does: operations that keep other tensors for backward.

Fake tensors claim to be on the cpu, where dropout keeps what it multiplied by, and attention with
dropout all of its weights. CUDA keeps a byte for each number, and no weights. The rules are those
of torch's own choice (`sdp_utils.cpp`), for a device of compute capability 8.0 or newer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from trainguard.observe.memory.cuda_autocast import widen

_aten = torch.ops.aten
_backends: Any = torch.backends.cuda
_library: Any = torch.library.Library
_WRITTEN_OUT = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 torch has no public name
_HALF = (torch.float16, torch.bfloat16)
_WIDEST = 256  # numbers of a head, the most that flash attention takes
_ALIGNED = 16  # bytes, to a multiple of which the kernels want heads and masks


@contextmanager
def operators_of_cuda() -> Iterator[None]:
    """Let dropout, attention and autocast of fake tensors do what they do on CUDA."""
    library = _library("aten", "IMPL")
    library.impl("dropout", _drop, "AutogradCPU")
    library.impl("scaled_dot_product_attention", _attend, "AutogradCPU")
    widen(library)
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001 there is no other way to take it back


def _drop(given: Tensor, p: float, train: bool) -> Any:
    """Drop out, with a mask of bytes where CUDA's one kernel does it."""
    if type(given) is FakeTensor and train and 0 < p < 1 and given.numel():
        return _aten.native_dropout.default(given, p, True)[0]
    return _aten.dropout.default._op_dk(_WRITTEN_OUT, given, p, train)  # noqa: SLF001


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    **named: Any,
) -> Any:
    """Attend, with the kernel that CUDA takes for these tensors."""
    tensors, scale = (query, key, value), named.get("scale")
    if not all(type(tensor) is FakeTensor for tensor in tensors):
        own = _aten.scaled_dot_product_attention.default
        return own._op_dk(_WRITTEN_OUT, *tensors, mask, dropout, causal, **named)  # noqa: SLF001
    if mask is None and _takes_flash(*tensors, causal, bool(named.get("enable_gqa"))):
        return _flash(*tensors, dropout, causal, scale)
    added = _as_added(mask, query)
    if _takes_efficient(*tensors):
        return _efficient(*tensors, added, dropout, causal, scale)
    written_out = _aten._scaled_dot_product_attention_math.default  # noqa: SLF001
    return written_out(*tensors, added, dropout, causal, None, **named)[0]


def _takes_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool, grouped: bool) -> bool:
    """Say whether flash attention takes tensors, or cuDNN's, which keeps as much."""
    asked = _backends.flash_sdp_enabled() or _backends.cudnn_sdp_enabled()
    if not asked or query.dtype not in _HALF or not _are_of_one_kind(query, key, value):
        return False
    square = not causal or query.shape[2] == key.shape[2]
    one_width = query.shape[3] == key.shape[3] == value.shape[3] <= _WIDEST
    heads = query.shape[1] % key.shape[1] == 0 if grouped else query.shape[1] == key.shape[1]
    return square and one_width and heads


def _takes_efficient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Say whether memory-efficient attention takes tensors."""
    if not _backends.mem_efficient_sdp_enabled():
        return False
    if query.dtype not in (*_HALF, torch.float32) or not _are_of_one_kind(query, key, value):
        return False
    apart = _ALIGNED // query.itemsize
    aligned = query.shape[3] % apart == value.shape[3] % apart == 0
    return aligned and query.shape[3] == key.shape[3] and query.shape[1] == key.shape[1]


def _are_of_one_kind(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Say whether they are of four dimensions that fit, none empty, with numbers side by side."""
    tensors = (query, key, value)
    if any(tensor.dim() != 4 or not tensor.numel() for tensor in tensors):
        return False
    side_by_side = all(tensor.stride(3) == 1 for tensor in tensors)
    one_dtype = query.dtype == key.dtype == value.dtype
    one_batch = query.shape[0] == key.shape[0] == value.shape[0]
    return side_by_side and one_dtype and one_batch and key.shape[1] == value.shape[1]


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    """Attend as flash attention does, with heads filled up to a multiple of what it takes."""
    width = query.shape[3]
    missing = -width % (_ALIGNED // query.itemsize)
    if missing:
        query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
    attend = _aten._scaled_dot_product_flash_attention.default  # noqa: SLF001
    made: Tensor = attend(query, key, value, dropout, causal, False, scale=scale)[0]
    return made[..., :width] if missing else made


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attend as memory-efficient attention does, with the rows of a mask filled up."""
    tensors = (query, key, value)
    if added is not None:
        missing = -added.shape[-1] % (_ALIGNED // added.itemsize)
        if missing:
            added = F.pad(added, (0, missing))[..., : added.shape[-1]]
        added = added.expand(*query.shape[:3], key.shape[2])
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    attend = _aten._scaled_dot_product_efficient_attention.default  # noqa: SLF001
    made: Tensor = attend(*tensors, added, trained, dropout, causal, scale=scale)[0]
    return made


def _as_added(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """Return what is added to the weights: a mask that says yes or no is made a number of."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
