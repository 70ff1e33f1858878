"""
Which graphs of autograd are kept beyond their step: of outputs, and of what backward is called on.

A mark left at a node lives and dies with the node. A mark of a step that is over and is still
there tells that somebody keeps the graph; no graph is kept, or walked through, to see it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.memory.module_scopes import ModuleScopes
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_KEPT_UNDER = "trainguard growth"


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
