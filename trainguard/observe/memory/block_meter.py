"""Follow the memory of a block of code as it runs: the real tensors of an ordinary test."""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_iter

from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import BACKWARD, FORWARD, TEMPORARIES
from trainguard.observe.memory.device import DeviceAllocationLog
from trainguard.observe.memory.events import events, stop_of
from trainguard.observe.memory.timeline import Timeline, exact, in_blocks
from trainguard.observe.memory.training import (
    BUFFERS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    enter_owners,
)


class BlockMeter:
    """
    The memory of a block: what is made in it, and what the modules called in it already hold.

    Which tensors are parameters, gradients or an optimizer's state is seen where modules are
    called and optimizers step.
    """

    def __init__(self) -> None:
        self._ledger = DeviceAllocationLog()
        self._ledger.phase, self._ledger.step = FORWARD, 1
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._following = ExitStack()

    def start(self) -> None:
        """Follow from here on."""
        for hook in (
            # Before the ledger's own, so that inside of an outermost call no other one is known.
            register_module_forward_pre_hook(self._calls),
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._has_stepped),
        ):
            self._following.callback(hook.remove)
        self._following.enter_context(self._ledger.following())

    def stop(self) -> None:
        """Follow no further, and name what is still without a category."""
        for module in self._called:
            grads = (p.grad for p in module.parameters() if p.grad is not None)
            self._ledger.enter_all(grads, GRADIENTS)
        self._following.close()
        freed = {c.entry: c.phase for c in self._ledger.changes if c.size < 0}
        for number, entry in enumerate(self._ledger.entries):
            # A result that is kept is no activation: only what the backward pass lets go was one.
            if not entry.category and entry.phase == FORWARD and freed.get(number) != BACKWARD:
                entry.category = TEMPORARIES

    def usages(self, error: BaseException | None = None) -> Iterator[Usage]:
        """
        Yield what the block took; raises SubjectError where that is nothing at all.

        error: what ended it, where it was a lack of memory.
        """
        device, kept = self._ledger.of_one_device()
        timeline = Timeline(kept, in_blocks if device == "cuda" else exact)
        stop = None if error is None else stop_of(error, self._ledger.live_bytes)
        yield from events(timeline, f"measured on {device}", (), "", stop)

    def _calls(self, module: nn.Module, args: Any) -> None:
        """Know the parameters of an outermost module, and what it is called with."""
        if self._ledger.scopes.now(backward=False):
            return
        self._ledger.enter_all((t for t in _tensors(args) if t.is_leaf), INPUTS)
        if module in self._called:
            return
        self._called.add(module)
        self._ledger.enter_all(module.parameters(), PARAMETERS)
        self._ledger.enter_all(module.buffers(), BUFFERS)
        enter_owners(self._ledger, module)

    def _steps(self, optimizer: Optimizer, *_: Any) -> None:
        """Know the parameters and gradients of an optimizer that steps."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._ledger.enter_all(held, PARAMETERS)
        self._ledger.enter_all((p.grad for p in held if p.grad is not None), GRADIENTS)

    def _has_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """Know its state."""
        self._ledger.enter_all(_tensors(list(optimizer.state.values())), OPTIMIZER_STATE)


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [value for value in tree_iter(values) if isinstance(value, Tensor)]
