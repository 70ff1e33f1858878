"""What a built model must be, and what it returned: its floating-point outputs by their path."""

import inspect
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Distribution
from torch.nn.parameter import is_lazy

from trainguard.core.errors import SubjectError

_DEEPEST = 6


@dataclass(frozen=True)
class Outputs:
    """
    What one call returned.

    returned: the object itself, as the loss takes it.
    tensors: its floating-point tensors by their path in it: "output" where it is one tensor,
        "logits", "0", "hidden.1" otherwise.
    """

    returned: Any
    tensors: dict[str, Tensor]

    @property
    def own_loss(self) -> Tensor | None:
        """The loss that the model computes itself: an output that is called so, or the only one."""
        named = self.tensors.get("loss")
        if named is not None and named.numel() == 1:
            return named.reshape(())
        only = [t for t in self.tensors.values() if t.ndim == 0]
        return torch.stack(only).sum() if len(only) == len(self.tensors) else None

    @property
    def only_number(self) -> Tensor | None:
        """The single output that is one number, where there is exactly one."""
        numbers = [tensor for tensor in self.tensors.values() if tensor.ndim == 0]
        return numbers[0] if len(numbers) == 1 else None

    def projection(self) -> Tensor:
        """Return a fixed random combination of all outputs, each weighted alike."""
        parts = [_project(name, tensor) for name, tensor in self.tensors.items()]
        return torch.stack(parts).sum()


def flatten(returned: Any) -> dict[str, Tensor]:
    """Return the floating-point tensors in what a model returned; raises where there is none."""
    found = {path or "output": tensor for path, tensor in _walk(returned, "", _DEEPEST)}
    if not found and hasattr(returned, "__dict__"):
        found = dict(_walk(vars(returned), "", _DEEPEST))
    if not found:
        raise SubjectError(
            f"its forward returned {describe(returned)}, with no floating-point tensor in it",
            "return the outputs as tensors, or in a dict, tuple or dataclass of them",
        )
    return found


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Yield every floating-point tensor in nested containers with its path."""
    if isinstance(value, Tensor):
        if value.is_complex():
            yield path, torch.view_as_real(value)
        elif value.is_floating_point() and value.numel():
            yield path, value.to_dense() if value.layout is not torch.strided else value
        return
    for name, part in _parts(value) if depth else ():
        yield from _walk(part, f"{path}.{name}" if path else str(name), depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of one container; nothing for what is none."""
    if isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        yield from ((str(name), part) for name, part in zip(names, value, strict=True))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((column.name, getattr(value, column.name)) for column in fields(value))
    elif isinstance(value, Distribution):
        yield from ((n, part) for n, part in vars(value).items() if not n.startswith("_"))


def _project(name: str, tensor: Tensor) -> Tensor:
    """Return the product of a tensor with weights that only its name and shape decide."""
    generator = Generator().manual_seed(zlib.crc32(f"{name}{tuple(tensor.shape)}".encode()))
    weights = torch.randn(tensor.shape, generator=generator)
    wide = tensor if tensor.dtype is torch.float64 else tensor.float()
    scale: float = tensor.numel() ** 0.5
    return (wide * weights.to(wide)).sum() / scale


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
