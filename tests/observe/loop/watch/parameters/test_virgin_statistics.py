"""Batch statistics that a model learns with, and that no batch has moved."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def learn(model: nn.Module, steps: int = 12) -> Probe | None:
    """Train a model in the mode that it is in, and return what is told of its statistics."""
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 4)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    told = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "virgin statistics"]
    return told[0] if told else None


def build(**options: bool) -> nn.Sequential:
    """Return layers with batch statistics."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, **options), nn.Linear(4, 4))


def test_statistics_that_nothing_has_moved() -> None:
    """In evaluation mode from the beginning: all passes that were looked at."""
    probe = learn(build().eval())
    assert probe is not None
    assert probe.measured == probe.reference >= 8
    assert probe.label == "Sequential.1"


@pytest.mark.parametrize("entry", ["running_mean", "running_var"])
def test_statistics_of_some_data(entry: str) -> None:
    """One of them that has moved is enough, as where they were loaded."""
    model = build().eval()
    getattr(model[1], entry)[0] = 0.5
    assert learn(model) is None


def test_layers_that_do_not_learn_asleep() -> None:
    """Those that are awake, keep no statistics, have no scale, or one that is frozen."""
    assert learn(build()) is None
    assert learn(build(track_running_stats=False).eval()) is None
    assert learn(build(affine=False).eval()) is None
    part = build()
    part[1].eval()  # the model is in training mode
    assert learn(part) is None
    frozen = build().eval()
    frozen[1].requires_grad_(requires_grad=False)
    assert learn(frozen) is None
