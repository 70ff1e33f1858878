"""What tests of the Parameter events share: a recording, its parameters, and a loop to record."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches
from trainguard.events.loop import Parameter
from trainguard.observe.loop.recorder import Recorder

FLAGS = ("trainable", "thawed", "held", "orphan", "called", "moved", "moved_frozen", "copy")
LEARNS = {"trainable", "held", "called", "moved"}


def told(train, *arguments, **options) -> list[Parameter]:
    """Record a training and return what became of its parameters."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        kept = train(*arguments, **options)
    del kept
    return [event for event in recorder.trace if isinstance(event, Parameter)]


def parameters_of(train, *arguments, **options) -> dict[str, Parameter]:
    """Record a training and return what became of its parameters, by name."""
    events = told(train, *arguments, **options)
    assert len({event.name for event in events}) == len(events)
    return {event.name: event for event in events}


def flags(parameter: Parameter) -> set[str]:
    """Return what is true of a parameter."""
    return {name for name in FLAGS if getattr(parameter, name)}


def loop(model, optimizer, steps: int = 6, *, after=lambda _step: None) -> nn.Module:
    """Train a model, and call `after(step)` after each step."""
    for step, (inputs, target) in enumerate(batches(steps)):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
        after(step)
    return model
