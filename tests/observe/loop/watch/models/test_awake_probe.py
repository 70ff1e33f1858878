"""Evaluations in training mode, by what a module drops in them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Dropping(nn.Module):
    """Drops numbers by a function, as its mode says."""

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.first, self.second, self.share = nn.Linear(6, 16), nn.Linear(16, 2), share

    def forward(self, rows):
        """Return two scores."""
        hidden = F.dropout(torch.relu(self.first(rows)), self.share, training=self.training)
        return self.second(hidden)


def by_layer() -> nn.Module:
    """Return the same with a layer that drops."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))


def learn(
    model: nn.Module, *, modes: tuple[bool, ...] = (True,), times: int = 1, said: str = "val"
) -> list[Probe]:
    """Make steps, and passes without a graph after each; return what is told of them."""
    rows, labels = torch.randn(40, 6), torch.randint(0, 2, (40,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for step in range(8):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(rows)[:20], labels[:20]).backward()
            optimizer.step()
            model.train(modes[step % len(modes)])
            with torch.no_grad():
                scores = [model(rows) for _ in range(times)]
            hits = (torch.stack(scores).mean(0).argmax(1) == labels)[20:].float().mean()
            print(f"step {step} {said} acc {hits.item():.3f}")
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "awake"]


@pytest.mark.parametrize("make", [Dropping, by_layer])
def test_what_is_dropped_in_an_evaluation(make) -> None:
    """By a function and by a layer, as the module is in training mode."""
    (probe,) = learn(make())
    assert probe.measured > 100 * probe.reference > 0
    assert probe.source.startswith(__file__)


def test_an_evaluation_with_a_graph() -> None:
    """In its mode: what is asked for without one is something else."""
    model, rows = Dropping(), torch.randn(40, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for step in range(8):
            model.train()
            with torch.no_grad():
                goals = model(rows).argmax(1)
            optimizer.zero_grad()
            F.cross_entropy(model(rows), goals).backward()
            optimizer.step()
            model.eval()
            print(f"step {step} val score {model(rows).mean().item():.3f}")
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "awake"]


def test_evaluations_that_are_fine() -> None:
    """In their mode, without anything to drop, of several draws, or without a number."""
    assert learn(Dropping(), modes=(False,)) == []
    assert learn(Dropping(), modes=(True, True, True, True, False)) == []
    assert learn(Dropping(0.0)) == []
    assert learn(Dropping(), times=3) == []
    assert learn(Dropping(), said="own") == []
