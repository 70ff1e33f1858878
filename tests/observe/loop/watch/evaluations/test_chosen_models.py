"""What the recorder sees of callbacks that choose a model by a metric."""

import warnings

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def chosen_with(*callbacks: object) -> list[tuple[str, float]]:
    """Record a training while callbacks are there, and return what is said of them."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert len(callbacks) < 3  # held until here
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    return [(probe.label, probe.measured) for probe in probes if probe.probe == "chosen"]


def test_callbacks_of_lightning_are_found() -> None:
    """By what they monitor, and in which direction; one without a metric chooses nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own
        callbacks = pytest.importorskip("lightning.pytorch.callbacks")
    found = chosen_with(
        callbacks.EarlyStopping("val_loss", mode="min"),
        callbacks.ModelCheckpoint(monitor="val_acc", mode="max"),
    )
    assert found == [("EarlyStopping val_loss", -1.0), ("ModelCheckpoint val_acc", 1.0)]
    assert ("ModelCheckpoint", 1.0) not in chosen_with(callbacks.ModelCheckpoint())
