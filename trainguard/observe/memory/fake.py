"""
Run a step on fake tensors: they have shapes, dtypes and storages, and no bytes.

They claim to be on the cpu, whatever is predicted: operations on fake CUDA tensors end the process
where torch was built without CUDA. What CUDA does otherwise is in `cuda_operators`.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_iter

from trainguard.observe.memory.allocation_log import TEMPORARIES, AllocationChange, AllocationLog
from trainguard.observe.memory.cuda_operators import operators_of_cuda
from trainguard.observe.memory.kernel_scratch import KERNELS, Kernel
from trainguard.observe.tools.child_process import go_backward
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

STAND_IN = 1.0
# What asks whether this is its first update, and whether a norm is not finite.
_ASKING = ("torch.optim.swa_utils", "torch.nn.utils.clip_grad")
_DEVICE = torch.ops.prim.device.default
_VIEW = torch.ops.aten.view.default
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default  # noqa: SLF001
_ACTIVE: list[FakeTensorMode] = []


class FakeAllocationLog(AllocationLog):  # type: ignore[no-untyped-call]
    """
    A ledger of fake tensors.

    read: the lines that read a floating-point number of a fake tensor, such as a loss that is
    logged; they were given `STAND_IN`. Anything else that is read, a condition or a size, decides
    what happens next and cannot be made up: torch's own exception is raised.
    kernels: the operations that take scratch space, with the place in `changes` that is left for
    it at each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, None] = {}
        self.kernels: dict[Kernel, list[int]] = {}

    def _leave_room(self, name: str, args: tuple[Any, ...]) -> None:
        """Leave room for the scratch space of an operation, which is over when it returns."""
        number, now = len(self.entries), self.now
        place = len(self.changes)
        self.entries.append(replace(self.entries[-1], size=0, category=TEMPORARIES))
        self.changes += [
            AllocationChange(number, 0, now, self.step),
            AllocationChange(number, 0, now, self.step),
        ]
        self.kernels.setdefault(Kernel.of(name, args), []).append(place)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; a number that is only looked at is made up."""
        if func is _DEVICE:  # what `.device` of a fake tensor comes to, most often of all
            return args[0].fake_device if type(args[0]) is FakeTensor else func(*args)
        if _is_in_place(func) and _are_fake(args):
            return args[0] if func._schema.returns else None  # noqa: SLF001
        if func is _UNSAFE_VIEW:
            func = _VIEW  # the same to a fake tensor, and remembered from one time to the next
        try:
            returned = super().__torch_dispatch__(func, types, args, kwargs)
        except DataDependentOutputException:
            return self._made_up(func, args)
        name = KERNELS.get(func)
        if name is not None:
            self._leave_room(name, args)
        return returned

    def _made_up(self, func: Any, args: tuple[Any, ...]) -> float | bool:
        """Return a number in the place of one that a fake tensor does not have, or raise."""
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001
            if args[0].is_floating_point():
                if _asks(sys._getframe(2), "torch.amp.grad_scaler"):  # noqa: SLF001
                    return 0.0  # whether a gradient is infinite: none is
                self.read.setdefault(caller(3))
                return STAND_IN
            if args[0].dtype is torch.bool and _asks(sys._getframe(2), *_ASKING):  # noqa: SLF001
                return False
        raise  # noqa: PLE0704 called where torch's own exception is being handled


@cache
def _is_in_place(func: Any) -> bool:
    """Say whether an operation does no more than write new values into its first argument."""
    schema = func._schema  # noqa: SLF001
    space, _, name = schema.name.partition("::")
    named = name.endswith("_") and not name.endswith("__") and name != "_resize_output_"
    reshapes = torch.Tag.inplace_view in func.tags
    return space == "aten" and named and not reshapes and len(schema.returns) < 2


def _are_fake(args: tuple[Any, ...]) -> bool:
    """Say whether no tensor has values: torch keeps those of some small ones, such as counters."""
    return all(
        type(value) is FakeTensor and value.constant is None
        for value in tree_iter(args)
        if isinstance(value, Tensor)
    )


def _asks(frame: FrameType | None, *modules: str) -> bool:
    """Say whether one of torch's modules is asking, to decide what to do next."""
    while frame is not None:
        if frame.f_globals.get("__name__") in modules:
            return True
        frame = frame.f_back
    return False


@contextmanager
def fake_tensors(target: str = "cpu") -> Iterator[FakeTensorMode]:
    """Make every tensor that is made inside a fake one, and let it do what it does on a target."""
    go_backward()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    patches = Patches()
    patches.replace(nn.Module, "_apply", lambda _: _apply)
    patches.replace(Tensor, "__deepcopy__", _deepcopy)
    _ACTIVE.append(mode)
    try:
        with mode, operators_of_cuda() if target == "cuda" else nullcontext():
            yield mode
    finally:
        _ACTIVE.remove(mode)
        patches.undo()


def active_mode() -> FakeTensorMode | None:
    """Return the mode that makes tensors fake now, or None."""
    return _ACTIVE[-1] if _ACTIVE else None


def without_values(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of a real module with fake parameters and buffers; fake ones are kept."""
    real = [t for t in (*module.parameters(), *module.buffers()) if not isinstance(t, FakeTensor)]
    if not real:
        return module
    memo: dict[int, Any] = {id(tensor): fake_twin(tensor, mode) for tensor in real}
    return copy.deepcopy(module, memo)


def fake_twin(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Return the fake twin of a parameter or buffer."""
    made = mode.from_tensor(tensor.detach())
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _deepcopy(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """
    Return what copies a tensor, for an average of a model.

    torch fails at fake constants; torch 2.4 copies the mode with a fake tensor too, and crashes.
    """

    def wrapper(self: Tensor, memo: dict[int, Any]) -> Tensor:
        """Copy a fake tensor by cloning it."""
        if not isinstance(self, FakeTensor) or not self.is_leaf or id(self) in memo:
            return original(self, memo)
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]

    return wrapper


def _apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do what `Module._apply` does, with new parameters: fake ones cannot always be swapped."""
    for child in self.children() if recurse else ():
        _apply(child, fn)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                made = fn(parameter)
            if made is not parameter:
                self._parameters[name] = nn.Parameter(made, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self
