"""What was made before a run: its modules and optimizers, which the run may go on with."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer

from trainguard.observe.memory.fake import fake_twin

_OWN = ("_parameters", "_buffers")


@contextmanager
def modules_without_values(mode: FakeTensorMode) -> Iterator[None]:
    """Give fake parameters and buffers to all modules that there are, and theirs back after it."""
    twins: dict[int, Tensor] = {}
    undo: list[tuple[Any, Any, Tensor]] = []
    for held, key in list(_places()):
        tensor = held[key]
        if isinstance(tensor, Tensor) and not isinstance(tensor, FakeTensor):
            undo.append((held, key, tensor))
            if id(tensor) not in twins:
                twins[id(tensor)] = fake_twin(tensor, mode)
            held[key] = twins[id(tensor)]
    try:
        yield
    finally:
        for held, key, tensor in reversed(undo):
            held[key] = tensor


def _places() -> Iterator[tuple[Any, Any]]:
    """Yield where modules and optimizers hold tensors: a dict or list, and the key in it."""
    for found in gc.get_objects():
        if issubclass(type(found), nn.Module):
            held = [vars(found).get(name) for name in _OWN]
        elif issubclass(type(found), Optimizer):
            held = [group["params"] for group in vars(found).get("param_groups", ())]
        else:
            continue
        for one in held:
            if isinstance(one, dict):
                yield from ((one, name) for name in list(one))
            elif isinstance(one, list):
                yield from ((one, place) for place in range(len(one)))
