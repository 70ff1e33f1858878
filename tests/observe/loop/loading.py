"""What tests of batches share: a recording's steps and probes, some rows, and a loop."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.observe.loop.trainings import network
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def recorded(train, *arguments, **options) -> tuple[Event, ...]:
    """Record a training and return its events."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(*arguments, **options)
    return recorder.trace.events


def steps_of(train, *arguments, **options) -> list[Step]:
    """Record a training and return its steps."""
    return [e for e in recorded(train, *arguments, **options) if isinstance(e, Step)]


def repeats_of(train, *arguments, **options) -> list[Probe]:
    """Record a training and return what was said of its batches."""
    events = recorded(train, *arguments, **options)
    return [e for e in events if isinstance(e, Probe) and e.probe == "batches"]


def rows(count: int = 40) -> TensorDataset:
    """Return rows of four numbers and their sums."""
    inputs = torch.randn(count, 4)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def fit(each, model: nn.Module | None = None) -> None:
    """Train on batches of an input and a target."""
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, target in each:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
