"""
The scratch space of convolutions on the cpu, found by running each distinct one once for real.

Their kernels bring inputs and weights into layouts of their own, which no dispatch shows. In low
precision that is 5 % of a small U-Net's peak and more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

from trainguard.observe.memory.allocation_log import AllocationChange, StorageEntry

MOST = 1 << 28  # bytes of inputs and outputs of one convolution that is tried out

_aten = torch.ops.aten
KERNELS = {
    _aten.convolution.default: "convolution",
    _aten.convolution_backward.default: "convolution_backward",
}
_CALLED = {name: kernel for kernel, name in KERNELS.items()}


@dataclass(frozen=True)
class Shape:
    """What a tensor is, apart from its numbers."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Kernel:
    """One call of an operation: its name, and its arguments with shapes in the place of tensors."""

    name: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, arguments: Iterable[Any]) -> "Kernel":
        """Describe a call."""
        return cls(name, _freeze(tree_map(_shape, list(arguments))))

    @property
    def size(self) -> int:
        """The bytes of the tensors that it is called with."""
        shapes = [shape for shape in self.arguments if isinstance(shape, Shape)]
        return sum(torch.Size(s.sizes).numel() * s.dtype.itemsize for s in shapes)

    def scratch(self) -> int:
        """Return the bytes that it takes beyond what it returns: at once, by the cpu's profiler."""
        arguments = [_make_argument(argument) for argument in self.arguments]
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            returned = _CALLED[self.name](*arguments)
        del returned
        held = most = kept = 0
        for event in profiled.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                most, kept = max(most, held), held
        return most - kept


def fill(
    entries: list[StorageEntry],
    changes: list[AllocationChange],
    kernels: Mapping[Kernel, list[int]],
) -> list[Kernel]:
    """
    Enter the scratch space of kernels into a ledger, where room was left for it.

    kernels: {kernel: the places of the two changes, of each call the first}. Returns those that
    are too large to be tried out.
    """
    left_out = []
    for kernel, places in kernels.items():
        if kernel.size > MOST:
            left_out.append(kernel)
            continue
        size = kernel.scratch()
        for place in places:
            for at, grown in ((place, size), (place + 1, -size)):
                changes[at] = replace(changes[at], size=grown)
            entries[changes[place].entry].size = size
    return left_out


def _shape(value: Any) -> Any:
    """Return the shape of a tensor, and anything else as it is."""
    if isinstance(value, Tensor):
        return Shape(tuple(value.shape), value.stride(), value.dtype)
    return value


def _freeze(value: Any) -> Any:
    """Return lists as tuples, at every depth."""
    return tuple(_freeze(part) for part in value) if isinstance(value, list | tuple) else value


def _make_argument(argument: Any) -> Any:
    """Return a tensor of zeros of a shape, and anything else as it is."""
    if isinstance(argument, Shape):
        made = torch.empty_strided(argument.sizes, argument.strides, dtype=argument.dtype)
        return made.zero_()
    return list(argument) if isinstance(argument, tuple) else argument
