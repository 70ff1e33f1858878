"""Which module is at work: in the forward pass by hooks, in the backward pass by what it undoes."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from trainguard.observe.tools.module_names import ModuleNames


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
