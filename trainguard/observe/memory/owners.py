"""Say of the storages that no call makes whose they are: those of parameters and their state."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_iter

from trainguard.observe.memory.allocation_log import AllocationLog


def enter_owners(
    ledger: AllocationLog, module: nn.Module, optimizer: Optimizer | None = None
) -> None:
    """Name the modules that hold parameters and buffers, and with them gradients and state."""
    names = ledger.scopes.names
    names.add(module)
    for owner in module.modules():
        held = (*owner.parameters(recurse=False), *owner.buffers(recurse=False))
        _name(ledger, held, names.module(owner))
        for own in owner.parameters(recurse=False):
            number = -1 if own.grad is None else ledger.enter(own.grad)
            if number >= 0:  # a sparse one is not followed
                ledger.entries[number].module = names.module(owner)
    for parameter, state in optimizer.state.items() if optimizer is not None else ():
        if isinstance(parameter, Tensor):
            tensors = [value for value in tree_iter(state) if isinstance(value, Tensor)]
            _name(ledger, tensors, names.holder(parameter))


def _name(ledger: AllocationLog, tensors: Iterable[Tensor], module: str) -> None:
    """Enter the module that storages belong to, where no other one is known."""
    for tensor in tensors:
        number = ledger.enter(tensor)
        if number >= 0 and not ledger.entries[number].module:
            ledger.entries[number].module = module
