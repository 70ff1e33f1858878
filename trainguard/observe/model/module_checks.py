"""What a built model must have: parameters, with values, and with a shape after the first call."""

import inspect

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainguard.core.errors import SubjectError


def describe(value: object) -> str:
    """Describe a value that should have been something else in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    if value is None:
        return "None"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"the {type(value).__name__} {value!r:.40}"


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def check_values(module: nn.Module) -> None:
    """Raise for a model without parameters, and for one whose parameters have no values."""
    if next(module.parameters(), None) is None:
        raise SubjectError(
            "it has no parameters, so there is nothing to train",
            "modules in a plain list or dict are not registered: use nn.ModuleList or ModuleDict",
        )
    for name, tensor in tensors_of(module).items():
        if tensor.device.type == "meta" and not is_lazy(tensor):
            raise SubjectError(
                f"its {name} is on the meta device, where nothing has a value",
                "build it on a real device, or load its weights before it is declared",
            )


def check_shapes(module: nn.Module) -> None:
    """Raise for parameters that are still without a shape after a call."""
    for name, tensor in tensors_of(module).items():
        if is_lazy(tensor):
            raise SubjectError(
                f"its lazy {name} is still without a shape after a call",
                "call the lazy module in forward, or give it its sizes",
            )
