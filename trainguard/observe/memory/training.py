"""One training step of a module, made as a training makes it, with a word on what is what."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_iter

from trainguard.core.errors import SubjectError
from trainguard.observe.memory.allocation_log import BUILD, FORWARD, AllocationLog
from trainguard.observe.model.model_case import backward, call_guarded

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS, INPUTS, AVERAGES = (
    "parameters", "gradients", "optimizer", "buffers", "inputs", "averages",
)  # fmt: skip
STEPS = 2  # the state of most optimizers appears in the first step, next to all gradients


@dataclass(frozen=True)
class Training:
    """
    What a step is made of.

    build: returns the module. feed: returns the inputs of a step. loss: returns the number that is
    minimised, from the module and its inputs, and what a loop still holds while it goes back (its
    outputs). optimizer: makes one from the parameters. average: makes the averaged copy from the
    module, or None. foreach: whether optimizers work on all parameters at once where they are not
    told, as they do on CUDA. steps: how many are made.
    """

    build: Callable[[], nn.Module]
    feed: Callable[[], Any]
    loss: Callable[[nn.Module, Any], tuple[Tensor, Any]]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None
    average: Callable[[nn.Module], Any] | None = None
    foreach: bool = True
    steps: int = STEPS


def train(training: Training, ledger: AllocationLog, steps: int | None = None) -> None:
    """Build the module and make so many steps with it, under a ledger that is entered."""
    steps = training.steps if steps is None else steps
    ledger.phase = BUILD
    module = training.build()
    ledger.enter_all(module.parameters(), PARAMETERS)
    ledger.enter_all(module.buffers(), BUFFERS)
    enter_owners(ledger, module)
    optimizer = _optimizer(training, module)
    average = None if training.average is None else training.average(module)
    _enter_average(ledger, average, module)
    for step in range(1, steps + 1):
        ledger.step = step
        _step(training, ledger, module, optimizer)
        update = getattr(average, "update_parameters", None) or getattr(average, "update", None)
        if update is not None:
            update(module) if hasattr(average, "update_parameters") else update()
        _enter_average(ledger, average, module)


def _step(
    training: Training, ledger: AllocationLog, module: nn.Module, optimizer: Optimizer | None
) -> None:
    """Make one step: forward, backward, optimizer; gradients are cleared at its end."""
    ledger.phase = BUILD
    inputs = training.feed()
    ledger.enter_all(_tensors(inputs), INPUTS)
    ledger.phase = FORWARD
    ledger.scopes.forget_step()
    loss, held = training.loss(module, inputs)
    backward(loss)
    ledger.enter_all((p.grad for p in module.parameters() if p.grad is not None), GRADIENTS)
    if optimizer is not None:
        optimizer.step()
        ledger.enter_all(_tensors(list(optimizer.state.values())), OPTIMIZER_STATE)
        enter_owners(ledger, module, optimizer)
    del loss, held, inputs
    ledger.phase = BUILD
    module.zero_grad(set_to_none=True)


def _optimizer(training: Training, module: nn.Module) -> Optimizer | None:
    """Make the optimizer of the parameters that are trained, working as it does on CUDA."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if training.optimizer is None or not trained:
        return None
    optimizer = call_guarded(training.optimizer, trained)
    if not isinstance(optimizer, Optimizer):
        made = type(optimizer).__name__
        raise SubjectError(f"its optimizer is a {made}", "give what makes one of torch.optim")
    for group in optimizer.param_groups:
        if training.foreach and not group.get("fused") and group.get("foreach", 0) is None:
            group["foreach"] = True
    return optimizer


def _enter_average(ledger: AllocationLog, average: Any, module: nn.Module) -> None:
    """Say which storages are the averaged copy's; a model that it refers to is none."""
    held = vars(average) if hasattr(average, "__dict__") else average
    modules = [average] if isinstance(average, nn.Module) else []
    modules += [value for value in _values(held) if isinstance(value, nn.Module)]
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    copied = [t for one in modules for t in (*one.parameters(), *one.buffers())]
    copied += _tensors(held)
    ledger.enter_all((tensor for tensor in copied if id(tensor) not in own), AVERAGES)


def _values(held: Any) -> list[Any]:
    """Return what stands in the attributes of an object."""
    return list(held.values()) if isinstance(held, dict) else []


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [value for value in tree_iter(values) if isinstance(value, Tensor)]


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
