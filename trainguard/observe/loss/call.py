"""The component behind a declared loss, made ready to be called, and what its calls return."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.isolation import restore, seed_everything, settings_now
from trainguard.observe.tools.structure import Structure
from trainguard.subjects.loss import Loss

Tensors = dict[str, Tensor]


@dataclass
class LossCase:
    """
    One loss at one structure, on one device, in one dtype.

    protect: pass copies of the tensors, for a component that edits its inputs in place.
    changed: the global settings that calls have changed; each was put back at once.
    """

    loss: Loss
    structure: Structure
    device: str
    dtype: torch.dtype
    protect: bool = False
    changed: list[tuple[str, Any, Any]] = field(default_factory=list)
    function: Callable[..., Any] = field(init=False)
    by_name: bool = field(init=False)

    def __post_init__(self) -> None:
        """Build the loss where it is a factory, and copy it where it is a module."""
        made = self.loss.function
        if self.loss.vary:
            made = self._guard(made, **self.structure.hyperparameters)
            if not callable(made):
                raise SubjectError(
                    f"its factory returned {_describe(made)}, which cannot be called",
                    "with vary=, the declared function takes the hyperparameters and returns"
                    " the loss",
                )
        if isinstance(made, torch.nn.Module):
            made = copy.deepcopy(made).to(self.device, self.dtype)
        self.function = made
        self.by_name = isinstance(made, torch.nn.Module) or takes_keywords(made)

    def parts(self, tensors: Tensors, seed: int = 0) -> dict[str, Tensor]:
        """Call the loss, seeded, and return its parts by name; a single tensor has the name ''."""
        if self.protect:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        before = settings_now()
        seed_everything(seed)
        try:
            returned = self._call(tensors)
        finally:
            self.changed += restore(before)
        return self._name_parts(returned)

    def total(self, tensors: Tensors, seed: int = 0) -> Tensor:
        """Call the loss and return what is minimised: the total, or the sum of the parts."""
        parts = self.parts(tensors, seed)
        if "" in parts:
            return parts[""]
        if self.loss.total is not None:
            return parts[self.loss.total]
        return torch.stack([part.sum() for part in parts.values()]).sum()

    def _call(self, tensors: Tensors) -> Any:
        """Call the loss with keywords, or in order where it takes no keywords."""
        if self.by_name:
            return self._guard(self.function, **tensors, **self.structure.arguments)
        ordered = {**tensors, **self.structure.arguments}
        return self._guard(self.function, *(ordered[name] for name in self.loss.inputs))

    def _guard(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call the team's code; what it raises is the subject's fault and keeps its traceback."""
        try:
            return function(*args, **keywords)
        except SubjectError:
            raise
        except (Exception, SystemExit) as error:
            told = [type(error).__name__, *str(error).strip().splitlines()[:1]]
            raise SubjectError(
                f"it raised {': '.join(told)}",
                self._hint(error) or "the traceback below is the component's own",
            ) from error

    def _hint(self, error: BaseException) -> str:
        """Say which dimension is too small for the numbers of an input, if those are an index."""
        sizes, domains = self.structure.sizes, self.loss.tensors
        indices = [(name, each) for name, each in domains.items() if each.kind == "integer"]
        for name, index in indices if isinstance(error, IndexError | RuntimeError) else ():
            high = index.span(sizes)[1]
            others = {dim for each in domains.values() for dim in each.names} - set(index.names)
            for dim in sorted(d for d in others if sizes[d] <= high):
                return (
                    f"{name} goes up to {high:g}, and {dim} has the size {sizes[dim]} here: if"
                    f' {name} is an index into {dim}, declare sizes={{"{dim}": {high + 1:g}}}'
                )
        return ""

    def _name_parts(self, returned: Any) -> dict[str, Tensor]:
        """Return what a call returned as named tensors, or say what is wrong with it."""
        if isinstance(returned, Tensor):
            return {"": self._check_tensor(returned, "")}
        if isinstance(returned, Mapping):
            return self._choose_parts({str(name): part for name, part in returned.items()})
        if isinstance(returned, tuple | list):
            names = [*getattr(returned, "_fields", self._names_in_order())]
            if len(names) != len(returned):
                raise SubjectError(
                    f"it returned a tuple of {len(returned)} parts, and {len(names)} are named",
                    'name every part in order: components=("reconstruction", "kl")',
                )
            return self._choose_parts(dict(zip(names, returned, strict=True)))
        raise SubjectError(
            f"it returned {_describe(returned)}, not a tensor",
            "return the loss as a tensor, or a dict or tuple of named parts",
        )

    def _names_in_order(self) -> list[str]:
        """Return the names for the parts of a tuple: the total first where one is named."""
        total = [self.loss.total] if self.loss.total not in (None, *self.loss.components) else []
        return [name for name in (*total, *self.loss.components) if name is not None]

    def _choose_parts(self, parts: dict[str, Any]) -> dict[str, Tensor]:
        """Keep the parts that the declaration names; every one of them must be there."""
        wanted = self._names_in_order()
        if not wanted:
            raise SubjectError(
                f"it returned several parts, {', '.join(parts)}, and none is declared",
                f"name the parts: components=({', '.join(map(repr, parts))})",
            )
        missing = [name for name in wanted if name not in parts]
        if missing:
            found = f", only {', '.join(parts)}" if parts else ""
            raise SubjectError(
                f"it returned no part {missing[0]!r}{found}", "name the parts as the loss does"
            )
        return {name: self._check_tensor(parts[name], name) for name in wanted}

    def _check_tensor(self, tensor: Any, name: str) -> Tensor:
        """Return a returned tensor if it can be a loss, or say why it cannot."""
        what = f"part {name!r}" if name else "loss"
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise SubjectError(
                f"its {what} is {_describe(tensor)}", "return a floating-point tensor"
            )
        if self.loss.reduction in ("sum", "mean") and tensor.ndim > 0:
            raise SubjectError(
                f"its {what} has the shape {tuple(tensor.shape)}, and"
                f" reduction={self.loss.reduction!r} promises a single number",
                'reduce it, or declare reduction="none"',
            )
        if self.loss.reduction == "none" and tensor.ndim == 0:
            raise SubjectError(
                f"its {what} is a single number, and reduction='none' promises one for each sample",
                'return one for each sample, or declare reduction="sum" or "mean"',
            )
        return tensor


def check_attached(total: Tensor) -> Tensor:
    """Return a loss if a gradient can flow back from it, or say that none can."""
    if not total.requires_grad:
        raise SubjectError(
            "its result is detached from its inputs, so nothing can be learned from it",
            "look for .item(), .detach(), .data, torch.no_grad() or a tensor made anew",
        )
    return total


def takes_keywords(function: Callable[..., Any]) -> bool:
    """Say whether a callable can be called with keywords, as far as can be known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return not any(p.kind is p.POSITIONAL_ONLY for p in parameters)


def _describe(value: object) -> str:
    """Describe a value that should have been a tensor in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    if value is None:
        return "None"
    told = f"{value:.4g}" if isinstance(value, float) else f"{value!r:.40}"
    return f"the {type(value).__name__} {told}"
