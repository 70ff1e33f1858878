"""
The ledger of a step: every storage that is made and let go, in order, with who made it.

A `TorchDispatchMode` sees what operations return. A storage is followed from the operation that
returns it first until it is freed; views and in-place operations add nothing. Works on fake
tensors, whose storages have sizes and no bytes, as on real ones.
"""

import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainguard.observe.tools.module_names import ModuleNames
from trainguard.observe.tools.user_line import caller, user_frame

BUILD, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = (
    "build", "forward", "backward", "recompute", "optimizer",
)  # fmt: skip
TEMPORARIES = "temporaries"  # the category of what lives within a pass only


@dataclass(slots=True)
class StorageEntry:
    """One storage: its bytes, and the phase, step, module, operation and line that made it."""

    size: int
    phase: str
    step: int
    module: str
    operation: str
    source: str
    category: str = ""


@dataclass(frozen=True, slots=True)
class AllocationChange:
    """One entry made, let go, or made larger or smaller by `size` bytes, in a phase of a step."""

    entry: int
    size: int
    phase: str
    step: int


class MemoryExceeded(MemoryError):
    """Raised where a real step has taken more than it was given; never on fake tensors."""


class AllocationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Follow all storages of a step while entered.

    entries: the storages, in the order in which they were met. changes: their making and freeing.
    phase: what is going on where neither backward nor an optimizer is. step: its number.
    most: the bytes beyond which a real step is stopped, with MemoryExceeded.
    """

    def __init__(self, most: float = float("inf")) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[StorageEntry] = []
        self.changes: list[AllocationChange] = []
        self.phase = BUILD
        self.step = 0
        self.most = most
        self.live_bytes = 0
        self.scopes = ModuleScopes()
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._optimizing = 0
        self._beyond = ""  # the line that asks for all this, which makes nothing itself

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and enter the storages that it made."""
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, Tensor):  # most often; the other way is for tuples and lists
            self.enter(returned, func)
            return returned
        for tensor in tree_iter(returned):
            if isinstance(tensor, Tensor):
                self.enter(tensor, func)
        return returned

    @contextmanager
    def following(self) -> Iterator["AllocationLog"]:
        """Follow what happens inside, with the modules and optimizers that it happens in."""
        hooks = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        self._beyond = caller()
        try:
            with self.scopes.follow(), self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def enter(self, tensor: Tensor, func: Any = None) -> int:
        """Enter the storage of a tensor, where it is not known yet, and return its number."""
        if tensor.layout is not torch.strided:
            return -1
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 the one name of a storage that its views share
        known = self._live.get(key)
        if known is not None:
            self._resize(known[1], storage.nbytes())
            return known[1]
        if tensor.device.type == "meta":  # asked late: fake tensors answer through the dispatcher
            return -1
        number = len(self.entries)
        self._live[key] = weakref.ref(storage, partial(self._on_free, key, number)), number
        phase = self.now
        self.entries.append(self._entry(storage.nbytes(), phase, func))
        self._change(number, storage.nbytes(), phase)
        return number

    def knows(self, tensor: Tensor) -> bool:
        """Say whether the storage of a tensor was entered, and is alive."""
        if tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._live  # noqa: SLF001

    def enter_all(self, tensors: Iterable[Tensor], category: str) -> None:
        """Say of which category the storages of these tensors are; the last word counts."""
        for tensor in tensors:
            number = self.enter(tensor)
            if number >= 0:
                self.entries[number].category = category

    @property
    def now(self) -> str:
        """The phase that is going on."""
        if self._optimizing:
            return OPTIMIZER
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001 as torch's module tracker does
            return RECOMPUTE if torch.is_grad_enabled() else BACKWARD
        return self.phase

    @property
    def live(self) -> dict[int, int]:
        """The storages that are alive, as {number: bytes}."""
        return {number: self.entries[number].size for _, number in self._live.values()}

    def _entry(self, size: int, phase: str, func: Any) -> StorageEntry:
        """Describe a new storage by what is going on."""
        frame = user_frame(sys._getframe(2))  # noqa: SLF001 the one way to look at callers cheaply
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        source = "" if line == self._beyond else line
        module = self.scopes.now(backward=phase == BACKWARD)
        name = str(getattr(func, "overloadpacket", "")).removeprefix("aten.")
        return StorageEntry(size, phase, self.step, module, name, source)

    def _change(self, number: int, size: int, phase: str) -> None:
        """Write down that a storage grew or shrank."""
        self.changes.append(AllocationChange(number, size, phase, self.step))
        self.live_bytes += size
        if size > 0 and self.live_bytes > self.most:
            raise MemoryExceeded(f"{self.live_bytes} bytes")

    def _resize(self, number: int, size: int) -> None:
        """Write down where a storage that is known has another size by now."""
        entry = self.entries[number]
        if entry.size != size:
            self._change(number, size - entry.size, self.now)
            entry.size = size

    def _on_free(self, key: int, number: int, _: object) -> None:
        """Write down that a storage was freed."""
        self._live.pop(key, None)
        self._change(number, -self.entries[number].size, self.now)

    def _optimizer_begins(self, *_: object) -> None:
        """Know that an optimizer is at work."""
        self._optimizing += 1

    def _optimizer_ends(self, *_: object) -> None:
        """Know that it is done."""
        self._optimizing = max(0, self._optimizing - 1)


class ModuleScopes:
    """
    The modules that are being called, innermost last.

    Autograd numbers its nodes as the forward pass makes them. The numbers at which modules were
    entered and left are kept, so that a node of the backward pass finds the module it belongs to.
    """

    def __init__(self) -> None:
        self.names = ModuleNames()
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._modules: list[str] = []

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Follow the calls of all modules inside."""
        hooks = [
            register_module_forward_pre_hook(self._on_enter),
            register_module_forward_hook(self._on_exit, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def now(self, backward: bool) -> str:
        """Return the name of the module at work, or nothing outside of all."""
        if self._stack or not backward:
            return self._stack[-1] if self._stack else ""
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 torch has no public name
        if node is None:
            return ""
        place = bisect_right(self._numbers, node._sequence_nr())  # noqa: SLF001
        return self._modules[place - 1] if place else ""

    def forget_step(self) -> None:
        """Forget the nodes of a step that is over."""
        self._numbers.clear()
        self._modules.clear()

    def _on_enter(self, module: nn.Module, *_: object) -> None:
        """Know that a module is called."""
        if not self._stack:
            self.names.add(module)
        self._stack.append(self.names.module(module))
        self._note()

    def _on_exit(self, *_: object) -> None:
        """Know that the innermost module has returned, or raised."""
        if self._stack:
            self._stack.pop()
        self._note()

    def _note(self) -> None:
        """Keep the number that the next node will have."""
        number = _get_sequence_nr()
        # Activation checkpointing goes forward again within backward, with higher numbers.
        if not self._numbers or number >= self._numbers[-1]:
            self._numbers.append(number)
            self._modules.append(self._stack[-1] if self._stack else "")
