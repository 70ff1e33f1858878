"""
What is alive between steps: the storages of tensors, and autograd's graphs.

Only what an operation made counts. A tensor that was there before and is met for the first time,
such as the next one in a list of batches, is nothing that grew.

A mark left at a node lives and dies with the node. A mark of a step that is over and is still
there tells that somebody keeps the graph; no graph is kept, or walked through, to see it.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.memory.allocation_log import ModuleScopes
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, user_frame

Place = tuple[str, str]  # module and line
_NEW = {"lift_fresh", "lift_fresh_copy", "lift"}  # what torch.tensor hands its new tensor to
_KEPT_UNDER = "trainguard growth"


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """One storage that is alive: who made it, in which step, and the storage itself, weakly."""

    step: int
    module: str
    source: str
    storage: "weakref.ref[torch.UntypedStorage]"

    @property
    def place(self) -> Place:
        """Where it was made."""
        return self.module, self.source

    @property
    def size(self) -> int:
        """Its bytes, 0 where it has gone in the meantime."""
        storage = self.storage()
        return storage.nbytes() if storage is not None else 0

    @property
    def device(self) -> str:
        """The type of device that it is on, "" where it has gone in the meantime."""
        storage = self.storage()
        return storage.device.type if storage is not None else ""

    @property
    def key(self) -> int:
        """What its views share; 0 where it has gone in the meantime."""
        storage = self.storage()
        return int(storage._cdata) if storage is not None else 0  # noqa: SLF001


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Know all storages that were made while entered and are still alive.

    step: the number of the step that is going on. alive: the storages, by what their views share.
    """

    def __init__(self, scopes: ModuleScopes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step = 0
        self.scopes = scopes
        self.alive: dict[int, LiveStorage] = {}
        self._excused: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and remember the storages that it made."""
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_iter(returned):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in self.alive:  # noqa: SLF001 what its views share
                    self._enter(storage, 0 if _returns_inputs(func) else self.step)
        return returned

    def find_storages(self, first: int, last: int) -> list[LiveStorage]:
        """Return what is alive of what the steps from `first` to `last` made."""
        return [
            one
            for key, one in list(self.alive.items())
            if first <= one.step <= last and key not in self._excused
        ]

    def excuse(self, tensors: Iterable[Tensor]) -> None:
        """Leave out the storages of these tensors, such as the state of an optimizer."""
        self._excused = {
            tensor.untyped_storage()._cdata  # noqa: SLF001
            for tensor in tensors
            if tensor.layout is torch.strided
        }

    def _enter(self, storage: torch.UntypedStorage, step: int) -> None:
        """Remember a storage until it is freed."""
        key = storage._cdata  # noqa: SLF001
        frame = user_frame(sys._getframe(2)) if step else None  # noqa: SLF001
        source = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 as torch's tracker does
        module = self.scopes.now(backward) if step else ""
        ref = weakref.ref(storage, partial(self._on_free, key))
        self.alive[key] = LiveStorage(step, module, source, ref)

    def _on_free(self, key: int, ref: object) -> None:
        """Forget a storage that was freed, unless another one is in its place already."""
        known = self.alive.get(key)
        if known is not None and known.storage is ref:
            del self.alive[key]


@cache
def _returns_inputs(func: Any) -> bool:
    """Say whether an operation hands on the storage of an input: a view, or what it works in."""
    if func.overloadpacket.__name__ in _NEW:
        return False
    returns = func._schema.returns  # noqa: SLF001 torch's own way to tell a view
    return any(each.alias_info is not None for each in returns)


class Mark:
    """The step, the module and the line of a node; no module where backward was called on it."""

    __slots__ = ("__weakref__", "module", "source", "step")

    def __init__(self, step: int, module: str, source: str) -> None:
        self.step, self.module, self.source = step, module, source


class AutogradGraphs:
    """Mark the outputs of outermost modules and what backward is called on, step by step."""

    def __init__(self, scopes: ModuleScopes) -> None:
        self.step = 0
        self._scopes = scopes
        self._inside: list[nn.Module] = []
        self._marks: list[weakref.ref[Mark]] = []

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Follow the calls of all modules inside, and backward."""
        patches = Patches()
        hooks = [
            register_module_forward_pre_hook(self._on_enter),
            register_module_forward_hook(self._on_exit, always_call=True),
        ]
        patches.replace(torch.autograd, "backward", self._backwards)
        try:
            yield
        finally:
            patches.undo()
            for hook in hooks:
                hook.remove()

    def find_marks(self, first: int, last: int) -> list[Mark]:
        """Return the marks of the steps from `first` to `last` whose graphs are still there."""
        self._marks = [ref for ref in self._marks if ref() is not None]
        alive = [mark for ref in self._marks if (mark := ref()) is not None]
        return [mark for mark in alive if first <= mark.step <= last]

    def mark(self, tensor: Tensor, module: str) -> None:
        """Leave a mark at the node that made a tensor, where there is one."""
        node: Any = tensor.grad_fn
        if node is None:
            return
        made = Mark(self.step, module, caller(2))
        node.metadata.setdefault(_KEPT_UNDER, []).append(made)
        self._marks.append(weakref.ref(made))

    def _on_enter(self, module: nn.Module, *_: object) -> None:
        """Know that a module is called."""
        self._inside.append(module)

    def _on_exit(self, module: nn.Module, _inputs: object, output: object) -> None:
        """Mark what an outermost module returns; a recomputation in backward is none."""
        if self._inside:
            self._inside.pop()
        if not self._inside and torch._C._current_graph_task_id() == -1:  # noqa: SLF001
            for tensor in tensors_in(output):
                self.mark(tensor, self._scopes.names.module(module))

    def _backwards(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `torch.autograd.backward` that marks what it is called on."""

        @wraps(backward)
        def wrapper(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            """Mark the tensors, and go backward."""
            if not isinstance(tensors, Tensor):
                tensors = tuple(tensors)  # a generator could not be read twice
            for tensor in tensors_in(tensors):
                self.mark(tensor, "")
            return backward(tensors, *args, **kwargs)

        return wrapper


def marks_at(node: Any) -> list[Mark]:
    """Return the marks that were left at a node."""
    return list(node.metadata.get(_KEPT_UNDER, ()))
