"""Find the module in which one part of the data first depends on another."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.model.frozen_copy import FrozenCopy, plain_kernels
from trainguard.observe.model.model_case import Inputs
from trainguard.observe.tools.user_line import foreign

_SLIGHT = 1e-6


@dataclass(frozen=True)
class Positions:
    """The positions of a dimension of a given size that must not change; `chosen` is a mask."""

    size: int
    chosen: Tensor

    def of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the part of each tensor with exactly one axis of that size."""
        index = self.chosen.nonzero().flatten()
        return [
            tensor.index_select(tensor.shape.index(self.size), index.to(tensor.device))
            for tensor in tensors
            if list(tensor.shape).count(self.size) == 1 and tensor.is_floating_point()
        ]


@dataclass
class Trail:
    """The calls of all modules in one call of the model, in the order in which they end."""

    part: Positions
    calls: list[tuple[str, nn.Module, list[Tensor], list[Tensor]]] = field(default_factory=list)

    def follow(self, specimen: FrozenCopy, inputs: Inputs) -> "Trail":
        """Call a copy of the model, and note what goes into each module and comes out."""
        model = specimen.copy()
        handles = [
            module.register_forward_hook(self._noting(name), with_kwargs=True)
            for name, module in model.named_modules()
        ]
        with torch.no_grad(), plain_kernels():
            specimen.network.call(model, inputs)
        for handle in handles:
            handle.remove()
        return self

    def _noting(self, name: str) -> Any:
        """Return a hook that notes the calls of one module."""

        def hook(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
            """Note one call."""
            given = self.part.of(list(tensors_in([args, keywords])))
            self.calls.append((name, module, given, self.part.of(list(tensors_in(output)))))

        return hook


def first_module(
    specimen: FrozenCopy, part: Positions, before: Inputs, after: Inputs
) -> tuple[str, str]:
    """
    Return the innermost module whose part changes though that of its inputs does not.

    With it goes the place of its forward in the user's code, where it stands there. Both are empty
    where no single module did it, or none can be told apart.
    """
    first, second = (Trail(part).follow(specimen, inputs) for inputs in (before, after))
    for one, two in zip(first.calls, second.calls, strict=False):
        name, module, given, made = one
        if name != two[0]:
            break
        if name and given and not _differ(given, two[2]) and _differ(made, two[3]):
            return f"`{name}` ({type(module).__name__})", _source(module)
    return "", ""


def _differ(some: list[Tensor], others: list[Tensor]) -> bool:
    """Say whether two lists of tensors differ by more than rounding."""
    if [t.shape for t in some] != [t.shape for t in others]:
        return True
    pairs = ((a.double(), b.double()) for a, b in zip(some, others, strict=True) if a.numel())
    return any(float((a - b).abs().max()) > _SLIGHT * float(a.abs().max()) for a, b in pairs)


def _source(module: nn.Module) -> str:
    """Return `file:line` of a module's forward where it is the user's own code."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None or not foreign(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"
