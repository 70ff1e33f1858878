"""
Trying things out on a copy of a live module, so that nobody notices.

The copy reads the parameters where they are, so that a large model costs no memory twice, and may
not write to them. It is made where it is whole: no other process takes part, nothing of the user's
is hooked into its calls, and its forward is its own. While it runs nothing is recorded or printed,
and every random stream is put back afterwards.
"""

import contextlib
import copy
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.devices import autocast_dtype, in_use
from trainguard.observe.tools.isolation import keep_streams
from trainguard.observe.tools.module_names import unwrap
from trainguard.observe.tools.patches import ReadOnly

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

T = TypeVar("T")
Inputs = tuple[Any, ...]
Run = Callable[[Inputs], list[torch.Tensor]]

_MOST_BYTES = 512 * 2**20
_PARTS = 16  # of a tensor that is compared
_SMALL = 2**16  # elements of a buffer that is put back if it was changed
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_FORCED = "force_eager"


@dataclass(frozen=True, slots=True)
class CopyableCall:
    """A call of an outermost module that can be made again on a copy of it."""

    module: nn.Module
    inputs: Inputs
    keywords: tuple[str, ...]  # names of the last inputs
    casts: tuple[tuple[str, torch.dtype], ...]  # device types under autocast

    @classmethod
    def of(cls, forward: Forward, module: nn.Module, inputs: Inputs) -> "CopyableCall":
        """Return a call that has just been made."""
        kinds = {"cpu", *(tensor.device.type for tensor in tensors_in(inputs))}
        casts = ((kind, dtype) for kind in kinds if (dtype := autocast_dtype(kind)) is not None)
        return cls(unwrap(module), inputs, forward.keywords, tuple(casts))

    def call_copy(self, module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
        """Call a copy with other inputs, and return the tensors of floats that come out."""
        return [tensor for tensor in self.outputs(module, inputs) if tensor.is_floating_point()]

    def outputs(self, module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
        """Call a copy with other inputs, and return all tensors that come out."""
        positional = len(inputs) - len(self.keywords)
        named = dict(zip(self.keywords, inputs[positional:], strict=True))
        with contextlib.ExitStack() as casts:
            for kind, dtype in self.casts:
                casts.enter_context(torch.autocast(kind, dtype=dtype))
            output = module(*inputs[:positional], **named)
        return list(tensors_in(output))


def attempt(
    recorder: "Recorder", call: CopyableCall, look: Callable[[Run], T], *, as_it_is: bool = False
) -> T | None:
    """
    Return what is seen on a copy in evaluation mode; None where there is no seeing it.

    look: is given a function that runs the copy, and may run it a handful of times. as_it_is:
    whether the parts of the copy stay in the modes that they are in.
    """
    try:
        if not _can_be_copied(call.module):
            return None
        with (
            _silence(recorder, call.module),
            torch.no_grad(),
            _twin(call.module) as twin,
            ReadOnly(call.module.parameters()),
        ):
            twin = twin if as_it_is else twin.eval()
            return look(lambda inputs: call.call_copy(twin, inputs))
    except Exception:  # noqa: BLE001 what the user's forward does the second time is its own affair
        return None


def largest(tensors: list[torch.Tensor]) -> float:
    """Return the largest absolute value in some tensors; 0 of none."""
    infinite = float("inf")
    norms = (torch.linalg.vector_norm(t, infinite) for t in tensors if t.numel())
    return max(map(float, norms), default=0.0)


def difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Return the largest difference between two outputs; infinite where they are not alike."""
    if [t.shape for t in first] != [t.shape for t in second]:
        return float("inf")
    # In parts: what is only compared must not add the size of an output to the peak.
    both = zip(map(torch.atleast_1d, first), map(torch.atleast_1d, second), strict=True)
    parts = (zip(a.chunk(_PARTS), b.chunk(_PARTS), strict=True) for a, b in both)
    return max((largest([a.float() - b.float()]) for part in parts for a, b in part), default=0.0)


@contextlib.contextmanager
def _silence(recorder: "Recorder", module: nn.Module) -> Iterator[None]:
    """Record nothing, print nothing and leave nothing behind for the length of a block."""
    patches, called = recorder.patches, set(recorder.called)
    buffers = [(b, b.detach().clone()) for b in module.buffers() if b.numel() <= _SMALL]
    was, patches.active = patches.active, False
    try:
        with keep_streams(), _plain_code(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        patches.active = was
        recorder.called.intersection_update(called)
        for buffer, before in buffers:
            if not torch.equal(buffer, before):  # a closure ran the live module
                buffer.data.copy_(before)  # `data`: graphs that hold the buffer stay valid


@contextlib.contextmanager
def _plain_code() -> Iterator[None]:
    """Run a block as it is written: not compiled, nor by kernels for evaluation alone."""
    stance = getattr(torch.compiler, "set_stance", None)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with contextlib.ExitStack() as held:
            if stance is not None and "torch._dynamo" in sys.modules:
                held.enter_context(stance(_FORCED))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _can_be_copied(module: nn.Module) -> bool:
    """Say whether a copy of a module would be small, and would be all that it runs."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    if isinstance(module, torch.jit.ScriptModule) or _called_globally():
        return False
    held = [*module.parameters(), *module.buffers()]
    if not {tensor.device.type for tensor in held} <= {"cpu", *in_use()}:
        return False
    copied = [*module.buffers(), *(p for p in module.parameters() if not _is_plain(p))]
    size = sum(tensor.numel() * tensor.element_size() for tensor in copied)
    return size <= _MOST_BYTES and all(_is_whole(part) for part in module.modules())


def _is_plain(parameter: torch.Tensor) -> bool:
    """Say whether a parameter is of no class of its own, and can be read through an alias."""
    return type(parameter) is nn.Parameter and type(parameter.data) is torch.Tensor


def _is_whole(module: nn.Module) -> bool:
    """Say whether nothing of the user's or of a compiler's is hooked into a module's calls."""
    hooks = [hook for kind in _HOOKS for hook in getattr(module, kind, {}).values()]
    wrapped = type(module).__name__ == "OptimizedModule"
    compiled = wrapped or getattr(module, "_compiled_call_impl", None) is not None
    own = vars(module).get("forward")
    bound = own is None or (isinstance(own, MethodType) and own.__self__ is module)
    return bound and not compiled and all(_is_of_torch(hook) for hook in hooks)


def _is_of_torch(hook: Any) -> bool:
    """Say whether a hook is one of torch's own, such as that of weight_norm."""
    own = getattr(hook, "__module__", None) or type(hook).__module__
    return str(own).startswith("torch.")


def _called_globally() -> bool:
    """Say whether somebody listens to the calls of all modules."""
    return any(getattr(nn.modules.module, f"_global{kind}", None) for kind in _HOOKS)


@contextlib.contextmanager
def _twin(module: nn.Module) -> Iterator[nn.Module]:
    """
    Copy a module around its parameters, and take the copy apart again.

    What a module remembers of its last call is no part of a graph in the copy. A cycle may keep the
    copy alive for a while: empty, it can be taken for nothing of the user's, and weighs nothing.
    """
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), p.requires_grad)
        for p in module.parameters()
        if _is_plain(p)
    }
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Optimizer | DataLoader | Dataset):
                memo[id(value)] = value
            elif not isinstance(value, nn.Module):
                memo |= {id(t): t.detach() for t in tensors_in(value) if t.grad_fn is not None}
    twin = copy.deepcopy(module, memo)
    parts = list(twin.modules())
    try:
        yield twin
    finally:
        for part in parts:
            for held in (part._parameters, part._buffers, part._modules):  # noqa: SLF001
                held.clear()
