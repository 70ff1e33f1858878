"""Trained modules, and copies of them: averages, teachers, dicts of shadow parameters."""

import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainguard.observe.loop.window import gradient_of
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import start_of

_PART = 0.05  # of its root, that a trained module must be for a copy of it to be looked for
_LEAST = 16  # elements of such a module
ALIKE = 0.7  # correlation of a copy with its module; that of two drawn apart is about zero
_COMPARED = 2  # parameters of a module that are compared
_ELEMENTS = 4096  # of each of them
_DENSE = 65536  # a larger parameter may be an embedding, of which few rows move
_ALONE = 2  # references to a shadow that only we have: our own, and the one it is counted with

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class TrainedModule:
    """
    A module that is trained.

    shapes: of all its parameters. held: names of those that are trained. compared: of the largest.
    buffers: how many it has. whole: whether the module is an outermost one.
    """

    module: weakref.ref[nn.Module]
    shapes: dict[str, torch.Size]
    held: tuple[str, ...]
    compared: tuple[str, ...]
    buffers: int
    whole: bool

    @property
    def lengths(self) -> set[int]:
        """How many tensors a dict or list has that holds what is trained, all, or the state."""
        return {len(self.held), len(self.shapes), len(self.shapes) + self.buffers}

    @property
    def elements(self) -> int:
        """The number of elements of all its parameters."""
        return sum(shape.numel() for shape in self.shapes.values())


@dataclass(slots=True)
class AveragedCopy:
    """
    A copy of a trained module: a module too, or a dict or list of tensors, its `shadow`.

    keys: where the compared parameters are in it. ids: of all its parameters.
    """

    follows: TrainedModule
    keys: tuple[str | int, ...]
    module: "weakref.ref[nn.Module] | None" = None
    shadow: Any = None
    ids: frozenset[int] = frozenset()

    @property
    def source(self) -> Any:
        """The module, dict or list itself, as long as it is alive."""
        return self.shadow if self.module is None else self.module()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody else has it any more; a dict cannot be referred to weakly."""
        if self.module is None:
            return sys.getrefcount(self.shadow) <= _ALONE
        return self.module() is None

    def entries(self) -> list[Pair]:
        """Return what is compared of the module and of its copy; none where either is gone."""
        student, source = self.follows.module(), self.source
        if student is None or source is None:
            return []
        own = [_entry(student, name) for name in self.follows.compared]
        other = [_entry(source, key) for key in self.keys]
        pairs = [
            (a, b)
            for a, b in zip(own, other, strict=True)
            if a is not None and b is not None and a.shape == b.shape and b.is_floating_point()
        ]
        return pairs if len(pairs) == len(own) else []

    def pairs(self) -> list[Pair]:
        """Return elements of the module, and the same of its copy; none where either is gone."""
        return [
            (sample_elements(a, _ELEMENTS), sample_elements(b, _ELEMENTS))
            for a, b in self.entries()
        ]

    def is_shared(self) -> bool:
        """Say whether the copy has the same memory as its module."""
        return all(start_of(a) == start_of(b) for a, b in self.pairs())

    def has_the_very_same(self) -> bool:
        """Say whether it holds the module's parameters themselves, not other tensors of theirs."""
        return any(a is b for a, b in self.entries())


def likenesses(copies: Sequence[AveragedCopy]) -> list[float]:
    """
    Return how well each copy correlates with its module: 1 where they are equal, 0 for no number.

    All in one transfer: a network may have many candidates, each of which would be waited for.
    """
    found = [[_correlation(student, copy) for student, copy in each.pairs()] for each in copies]
    flat = [likeness for each in found for likeness in each]
    if not flat:
        return [0.0] * len(copies)
    numbers = iter(torch.stack([likeness.to(flat[0].device) for likeness in flat]).tolist())
    known = [[number for _ in each if not isnan(number := next(numbers))] for each in found]
    return [min(each, default=0.0) for each in known]


def trained_modules(
    module: nn.Module, held: set[int], least: float | None = None
) -> Iterator[TrainedModule]:
    """Yield a module that is trained, and the larger ones of those inside it."""
    named = {n: p for n, p in nn.Module.named_parameters(module) if not is_lazy(p)}
    elements = sum(parameter.numel() for parameter in named.values())
    own = {n: p for n, p in named.items() if id(p) in held and p.is_floating_point()}
    if not own or elements < max(_LEAST, least or 0):
        return
    ranked = sorted(
        own,
        key=lambda n: (gradient_of(own[n]) is not None, own[n].numel() <= _DENSE, own[n].numel()),
        reverse=True,
    )
    shapes = {name: parameter.shape for name, parameter in named.items()}
    compared = tuple(ranked[:_COMPARED])
    buffers = sum(1 for _ in nn.Module.named_buffers(module))
    yield TrainedModule(weakref.ref(module), shapes, tuple(own), compared, buffers, least is None)
    for _, child in nn.Module.named_children(module):
        yield from trained_modules(child, held, _PART * elements if least is None else least)


def _entry(source: Any, key: str | int) -> torch.Tensor | None:
    """Return a tensor of a module, a dict or a list; None where it is no longer there."""
    try:
        is_module = isinstance(source, nn.Module)
        found = source.get_parameter(str(key)) if is_module else source[key]
    except (AttributeError, KeyError, IndexError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _correlation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the correlation of two vectors; nan where either is constant."""
    precise = torch.float32 if one.device.type == "mps" else torch.float64
    a, b = one.to(precise), other.to(one.device, precise)
    a, b = a - a.mean(), b - b.mean()
    correlation: torch.Tensor = a @ b / (a.norm() * b.norm())
    return correlation
