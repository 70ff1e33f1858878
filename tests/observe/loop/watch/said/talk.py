"""A small training that says its losses, and what a recorder heard of them."""

import sys

import torch
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Logged
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.said.loggers import LogCall, _places


def train(log, steps: int = 3) -> list[float]:
    """Train with SGD and hand each loss to `log` with its step; return the losses."""
    torch.manual_seed(0)
    model, losses = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (inputs, target) in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        log(loss, step)
    return losses


def said(recorder: Recorder, channel: str, name: str) -> list[float]:
    """Return the values that were said under a name through a channel."""
    return [event.value for event in heard(recorder, channel) if event.name == name]


def heard(recorder: Recorder, channel: str) -> list[Logged]:
    """Return the numbers that went through a channel."""
    events = (event for event in recorder.trace if isinstance(event, Logged))
    return [event for event in events if event.channel == channel]


def replaced() -> list[LogCall]:
    """Return the functions of loggers that are replaced at present."""
    return [place for place in _places() if "loggers.py" in _file(place)]


def _file(place: LogCall) -> str:
    """Return the file in which a function of a logger was written."""
    owner, (*classes, name) = sys.modules.get(place.module), place.function.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    function = vars(owner).get(name) if owner is not None else None
    return function.__code__.co_filename if hasattr(function, "__code__") else ""
