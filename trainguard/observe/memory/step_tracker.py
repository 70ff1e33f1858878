"""Tell a ledger what is going on in a training that knows nothing of it: phases, steps, owners."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_iter

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.memory.allocation_log import BUILD, FORWARD, AllocationLog
from trainguard.observe.memory.step_counter import StepCounter, StopFollowing
from trainguard.observe.memory.training import (
    AVERAGES,
    BUFFERS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    enter_owners,
)

STEPS = 3  # the first makes the state, and in the second all gradients may still be there
_TABLES = (dict, list)


class StepTracker:
    """
    Follow a training and tell a ledger, which is entered, of its steps.

    foreach: whether optimizers that were told nothing work on all parameters at once.
    """

    def __init__(self, ledger: AllocationLog, foreach: bool) -> None:
        self.ledger = ledger
        self.foreach = foreach
        self.paces = StepCounter(self._over)
        self._roots: list[nn.Module] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what happens inside; after a few steps it is stopped."""
        hooks = [
            register_module_forward_pre_hook(self._on_call),
            register_optimizer_step_pre_hook(self._steps),
        ]
        try:
            with self.paces.follow():
                yield
        except StopFollowing:
            pass
        finally:
            for hook in hooks:
                hook.remove()

    def _on_call(self, module: nn.Module, inputs: Any) -> None:
        """Know that a module is called; the first call of an outermost one begins a step."""
        if (
            self.ledger.phase != BUILD
            or self.ledger.now != BUILD
            or _is_transformed(module, inputs)
        ):
            return
        self._begin()
        if not any(module is root for root in self._roots):
            self._roots.append(module)
            self._enter(module)
        for tensor in tensors_in(inputs):
            number = self.ledger.enter(tensor) if tensor.grad_fn is None else -1
            if number >= 0 and not self.ledger.entries[number].category:
                self.ledger.entries[number].category = INPUTS

    def _begin(self) -> None:
        """Begin a step; what was made before the first one and is kept are data."""
        self.ledger.phase = FORWARD
        if not self.ledger.step:
            self.ledger.step = 1
            for number in self.ledger.live:
                entry = self.ledger.entries[number]
                entry.category = entry.category or INPUTS

    def _enter(self, module: nn.Module) -> None:
        """Enter what a module holds."""
        self.ledger.enter_all(module.parameters(), PARAMETERS)
        self.ledger.enter_all(module.buffers(), BUFFERS)
        enter_owners(self.ledger, module)

    def _steps(self, optimizer: Optimizer, *_: object) -> None:
        """Know that an optimizer begins its step."""
        for group in optimizer.param_groups:
            self.ledger.enter_all(group["params"], PARAMETERS)
            self.ledger.enter_all(_gradients(group["params"]), GRADIENTS)
            if self.foreach and not group.get("fused") and group.get("foreach", 0) is None:
                group["foreach"] = True

    def _over(self) -> None:
        """Know that a step is over; the last one is followed by a look at who holds what."""
        known = [p for root in self._roots for p in root.parameters()]
        self.ledger.enter_all(_gradients(known), GRADIENTS)
        for optimizer in self.paces.optimizers:
            state = tree_iter(list(optimizer.state.values()))
            self.ledger.enter_all((t for t in state if isinstance(t, Tensor)), OPTIMIZER_STATE)
            for root in self._roots:
                enter_owners(self.ledger, root, optimizer)
        self.ledger.scopes.forget_step()
        self.ledger.phase = BUILD
        if self.paces.count >= STEPS:
            self._enter_averages()
            raise StopFollowing(f"{STEPS} steps were followed")
        self.ledger.step = self.paces.count + 1

    def _enter_averages(self) -> None:
        """Say which storages are copies of what is trained: modules, and dicts or lists of them."""
        trained = [p for o in self.paces.optimizers for g in o.param_groups for p in g["params"]]
        own = {id(parameter) for parameter in trained}
        storages = {p.untyped_storage()._cdata for p in trained}  # noqa: SLF001
        found = gc.get_objects()
        for root in self._roots:
            shapes = [p.shape for p in root.parameters()]
            if not any(id(p) in own for p in root.parameters()):
                continue
            for copy in found:
                tensors = _list_tensors(copy, shapes)
                if tensors and not any(
                    t.untyped_storage()._cdata in storages  # noqa: SLF001
                    for t in tensors
                ):
                    self._enter_copy(tensors)

    def _enter_copy(self, tensors: Iterable[Tensor]) -> None:
        """Enter an averaged copy; gradients and state have the same shapes and are none."""
        for tensor in filter(self.ledger.knows, tensors):  # others have nothing to do with the run
            number = self.ledger.enter(tensor)
            kind = self.ledger.entries[number].category if number >= 0 else GRADIENTS
            if kind not in (GRADIENTS, OPTIMIZER_STATE):
                self.ledger.entries[number].category = AVERAGES


def _is_transformed(module: nn.Module, inputs: Any) -> bool:
    """Say whether torch.func calls a module, on tensors that have no storage of their own."""
    tensors = (*tensors_in(inputs), *module.parameters(), *module.buffers())
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 torch's only way to ask
    return any(wrapped(tensor) for tensor in tensors)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that parameters have by now."""
    return [p.grad for p in parameters if p.grad is not None]


def _list_tensors(held: Any, shapes: list[torch.Size]) -> list[Tensor]:
    """Return the tensors of a module, dict or list where they have just these shapes."""
    if issubclass(type(held), nn.Module):
        tensors: list[Any] = list(nn.Module.parameters(held))
    elif type(held) in _TABLES and len(held) == len(shapes):
        tensors = list(held.values() if isinstance(held, dict) else held)
    else:
        return []
    if not all(issubclass(type(tensor), Tensor) for tensor in tensors):
        return []
    return tensors if [tensor.shape for tensor in tensors] == shapes else []
