"""What a script defines of tensors is told of what the script does with them alone."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainguard.observe.loop.recorder import Recorder

TOLD: Counter[str] = Counter()


class Own(torch.Tensor):
    """Tensors that count what is done with them."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count a call."""
        TOLD["class"] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Functions(TorchFunctionMode):
    """A mode that counts calls."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count a call."""
        TOLD["functions"] += 1
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """A mode that counts operators, as those do that count their cost."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count an operator."""
        TOLD["operators"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def replaced(owner: Any, name: str) -> Iterator[None]:
    """Put what counts in the place of a function, as a script may."""
    function = getattr(owner, name)

    def count(*args: Any, **named: Any) -> Any:
        """Count a call."""
        TOLD[name] += 1
        return function(*args, **named)

    setattr(owner, name, count)
    try:
        yield
    finally:
        setattr(owner, name, function)


WAYS = {
    "class": nullcontext,
    "functions": Functions,
    "operators": Operators,
    "item": lambda: replaced(torch.Tensor, "item"),
    "mse_loss": lambda: replaced(F, "mse_loss"),
}


def train(way: str) -> int:
    """Train in one of the ways, and return how often the script was told of something."""
    TOLD.clear()
    kind = Own if way == "class" else torch.Tensor
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with WAYS[way]():
        for _ in range(12):
            x = torch.randn(8, 3).as_subclass(kind)
            loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert loss.item() == loss.item()
    return TOLD[way]


@pytest.mark.parametrize("way", WAYS)
def test_a_script_is_told_of_its_own_work_alone(way: str) -> None:
    """Tensors of a class, modes and replaced functions count the same with a recording."""
    alone = train(way)
    with Recorder("x") as recorder:
        assert train(way) == alone
    assert alone
    assert recorder.trace.conditions.get("faults", ()) == ()
