"""Graphs that are kept from evaluation to evaluation."""

from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.loop import RunGrowth
from trainguard.observe.loop.recorder import Recorder


class Keeper:
    """Keeps something of each evaluation."""

    def __init__(self, keep: Callable) -> None:
        self.keep, self.kept = keep, None

    def evaluate(self, model: nn.Module) -> None:
        """Evaluate a model with a graph, as it happens without no_grad."""
        self.kept = self.keep(self.kept, model(torch.randn(4, 3)).square().mean())


def train(keep: Callable, *, epochs: int = 40) -> RunGrowth:
    """Train, evaluate after each epoch, and return what was counted of old graphs."""
    model, keeper = nn.Linear(3, 1), Keeper(keep)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(epochs):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
            keeper.evaluate(model)
    assert "faults" not in recorder.trace.conditions
    return next(e for e in recorder.trace if isinstance(e, RunGrowth) and e.kind == "stale")


def test_a_mean_that_keeps_its_graph() -> None:
    """The graphs of all evaluations stay, in the attribute that is named."""
    growth = train(lambda kept, value: value if kept is None else 0.9 * kept + 0.1 * value)
    assert max(growth.counts) >= 8
    assert growth.name == "keeper.kept"
    assert "test_growing.py:" in growth.source


@pytest.mark.parametrize(
    "keep",
    [
        lambda kept, value: value,
        lambda kept, value: value.item() if kept is None else 0.9 * kept + 0.1 * value.item(),
        lambda kept, value: deque([*(kept or ()), value], maxlen=5),
    ],
    ids=["latest", "number", "window"],
)
def test_what_lets_graphs_go(keep: Callable) -> None:
    """The latest loss, a mean of numbers, and a window of a few."""
    assert max(train(keep).counts) < 8
