"""Tap the inputs of one call, so that a gradient can be taken with respect to each of them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainguard.observe.model.model_case import Inputs


@dataclass
class InputGradients:
    """
    The places at which inputs come into a model: themselves, or their embeddings.

    inputs: what the model is to be called with instead.
    leaves: (input, tensor) pairs; a tensor's first axes are those of its input.
    """

    inputs: Inputs
    leaves: list[tuple[str, Tensor]] = field(default_factory=list)

    @property
    def tapped_inputs(self) -> set[str]:
        """The names of the inputs with a place to take a gradient at."""
        return {name for name, _ in self.leaves}


@contextmanager
def tapping(module: nn.Module, inputs: Inputs, names: Iterable[str]) -> Iterator[InputGradients]:
    """Tap the named inputs of what is called in the block."""
    taps, whole = InputGradients(dict(inputs)), {}
    for name in names:
        value = inputs[name]
        if isinstance(value, Tensor) and value.is_floating_point():
            leaf = value.clone().requires_grad_()
            taps.leaves.append((name, leaf))
            taps.inputs[name] = leaf.clone()  # a leaf must not be edited in place, a copy may
        elif isinstance(value, Tensor):
            whole[name] = value
    handles = [
        part.register_forward_hook(_tap(taps, whole))
        for part in module.modules()
        if isinstance(part, nn.Embedding)
    ]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def _tap(taps: InputGradients, whole: Inputs) -> Any:
    """Return a hook that keeps what an embedding makes of one of the inputs."""

    def hook(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Keep the output, and see to it that it is part of the graph."""
        name = next((n for n, value in whole.items() if args and _equal(args[0], value)), None)
        if name is None or not isinstance(output, Tensor):
            return None
        kept = output if output.requires_grad else output.detach().requires_grad_()
        taps.leaves.append((name, kept))
        return kept

    return hook


def _equal(given: Any, value: Tensor) -> bool:
    """Say whether a module was given an input as it is."""
    same = isinstance(given, Tensor) and given.shape == value.shape and given.dtype == value.dtype
    return same and torch.equal(given, value)
