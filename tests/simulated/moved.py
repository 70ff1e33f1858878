"""
What trainings on a device do besides.

They move the batches of data sets that are on the host, keep the device's stream of random numbers
where they keep torch's, and move what a generator of the host has drawn.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from tests.simulated.device import REAL

MOVED = "TRAINGUARD_SIMULATED_MOVED"  # the variable that has processes begin with it


class _Moving:
    """An iterator over batches that are loaded on the host, and moved."""

    def __init__(self, batches: Any, device: str) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Any:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, on the device."""
        with torch.device("cpu"):
            batch = next(self._batches)
        return tree_map(lambda x: x.to(self._device) if isinstance(x, torch.Tensor) else x, batch)


@contextmanager
def moved(device: str) -> Iterator[None]:
    """Have trainings do all that; a generator of the host may draw on a simulated device."""
    with ExitStack() as every:
        every.enter_context(batches_moved(device))
        every.enter_context(streams_kept(device))
        if REAL in os.environ:
            every.enter_context(DrawnOnHost(device))
        yield


@contextmanager
def batches_moved(device: str) -> Iterator[None]:
    """Have what loaders serve loaded on the host, and moved to a device."""
    make, serve = DataLoader.__init__, DataLoader.__iter__

    @wraps(make)
    def made(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        """Make a loader of a data set that is on the host."""
        with torch.device("cpu"):
            make(loader, _on_host(dataset), *args, **kwargs)

    @wraps(serve)
    def served(loader: Any) -> Any:
        """Return an iterator that moves what it serves."""
        with torch.device("cpu"):
            return _Moving(serve(loader), device)

    with patch.multiple(DataLoader, __init__=made, __iter__=served):
        yield


@contextmanager
def streams_kept(device: str) -> Iterator[None]:
    """Have `torch.get_rng_state` and `set_rng_state` keep the stream of a device too."""
    module, read, write = torch.get_device_module(device), torch.get_rng_state, torch.set_rng_state
    length = len(read())

    def get_both() -> torch.Tensor:
        """Return the state of the host's stream, and of the device's after it."""
        return torch.cat([read(), module.get_rng_state(device).cpu()])

    def set_both(state: torch.Tensor) -> None:
        """Set the host's stream, and the device's where its state is there."""
        write(state[:length])
        if len(state) > length:
            module.set_rng_state(state[length:].clone(), device)

    with patch.multiple(torch, get_rng_state=get_both, set_rng_state=set_both):
        yield


class DrawnOnHost(TorchFunctionMode):
    """Draws where a generator is that is given, and moves what it has drawn."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function."""
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if generator is None or generator.device.type != "cpu" or kwargs.get("device") is not None:
            return func(*args, **kwargs)
        if not any(isinstance(value, torch.Tensor) for value in args):
            return func(*args, **kwargs, device="cpu").to(self._device)
        return func(*args, **kwargs)


def _on_host(value: Any) -> Any:
    """Return a data set, or what it holds, with tensors on the host in the place of all others."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, Dataset):
        vars(value).update({name: _on_host(own) for name, own in vars(value).items()})
    if type(value) in (tuple, list, dict):
        return tree_map(_on_host, value, is_leaf=lambda x: isinstance(x, torch.Tensor | Dataset))
    return value
