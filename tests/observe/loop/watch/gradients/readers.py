"""A small training in which gradients are read, and what a recorder saw of it."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Read
from trainguard.observe.loop.recorder import Recorder


def train(steps=12, *, before=None, after=None, between=None, none=True, micro=1, every=1) -> None:
    """Train; `before` is called with the model before each step, `after` after the clearing."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        for inputs, target in batches(micro):
            F.mse_loss(model(inputs), target).backward()
        due = step % every == 0
        if before and due:
            before(model)
        optimizer.step()
        if between and due:
            between(model)
        optimizer.zero_grad(set_to_none=none)
        if after and due:
            after(model)


def reads(**options) -> dict[str, tuple[int, int]]:
    """Record a training; return how often each line of code found gradients cleared and there."""
    with Recorder("x") as recorder:
        train(**options)
    events = [event for event in recorder.trace if isinstance(event, Read)]
    assert all(event.source.startswith(str(Path(__file__).parent)) for event in events)
    return {event.code: (event.empty, event.full) for event in events if event.empty}


def sweep(model: nn.Module) -> float:
    """Return the norm of the gradients, as people compute it."""
    total = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            total += parameter.grad.norm().item() ** 2
    return total**0.5


def generator(model: nn.Module) -> float:
    """Return it from a generator."""
    return sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)


def clip(model: nn.Module) -> float:
    """Return it from torch's own function, with a limit that changes nothing."""
    return nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


def listed(model: nn.Module) -> list:
    """Return the gradients."""
    return [p.grad for p in model.parameters()]


def line(function) -> str:
    """Return the line of a function that reads gradients."""
    text = Path(function.__code__.co_filename).read_text(encoding="utf-8").splitlines()
    rows = text[function.__code__.co_firstlineno :]
    return next(row.strip() for row in rows if ".grad" in row or "clip_grad" in row)
