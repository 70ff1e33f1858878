"""Weights of terms that a loss learns, and what holds them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Sum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def looks(add: Sum, maximize: bool = False) -> list[tuple[bool, int, str]]:
    """Make nine steps with two terms, and return what was seen: if it fell, and in how many."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    learned = nn.Parameter(torch.tensor([0.3, 0.4]))
    groups = [{"params": model.parameters()}, {"params": [learned], "maximize": maximize}]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(9):
            made = model(torch.randn(16, 4))
            first = F.cross_entropy(made[:, :2], torch.randint(2, (16,)))
            second = F.mse_loss(made[:, 2], torch.randn(16))
            optimizer.zero_grad()
            add(first, second, learned).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "free weight"]
    return [(probe.measured < probe.reference, probe.step, probe.label) for probe in found]


FREE: dict[str, Sum] = {
    "exponentials": lambda a, b, s: (-s[0]).exp() * a + (-s[1]).exp() * b,
    "halves": lambda a, b, s: 0.5 * a / s[0].exp() ** 2 + 0.5 * b / s[1].exp() ** 2,
    "as it is": lambda a, b, s: s[0] * a + s[1] * b,
    "a vector": lambda a, b, s: ((-s).exp() * torch.stack([a, b])).sum(),
    "one of two": lambda a, b, s: a + F.softplus(s[0]) * b,
}
HELD: dict[str, Sum] = {
    "added": lambda a, b, s: (-s[0]).exp() * a + (-s[1]).exp() * b + s.sum(),
    "logarithms": lambda a, b, s: a / s[0] ** 2 + b / s[1] ** 2 + s.log().sum(),
    "a softmax": lambda a, b, s: s.softmax(0)[0] * a + s.softmax(0)[1] * b,
    "nothing learned": lambda a, b, s: 0.3 * a + b,
    "of each output": lambda a, b, s: b + (s[0] * a.expand(8)).mean(),
    "in a term": lambda a, b, s: s[0] * a + F.mse_loss(s * b, torch.ones(2)),
}


@pytest.mark.parametrize("name", FREE)
def test_weights_that_nothing_holds_are_told(name: str) -> None:
    """They fall at each of the five steps that are looked at."""
    assert looks(FREE[name]) == [(True, 5, "(2)")]


@pytest.mark.parametrize("name", HELD)
def test_weights_that_are_held_are_left_alone(name: str) -> None:
    """By a term of their own, or by each other."""
    assert looks(HELD[name]) == []


def test_an_adversary_is_left_alone() -> None:
    """Its weights rise."""
    assert looks(FREE["as it is"], maximize=True) == []
