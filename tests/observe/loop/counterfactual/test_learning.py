"""One batch learned: what brings its loss below that of a constant."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.recorder import Recorder

TURNS = itertools.count()


def ask(loss_of=F.mse_loss, rate=0.05, *, width=32, targets=None, make=torch.optim.SGD):
    """Record a training, and return what became of the question of one batch."""
    torch.manual_seed(0)
    points = torch.randn(64, 6)
    targets = points.sum(1, keepdim=True).sin() if targets is None else targets
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))
        optimizer = make(net.parameters(), lr=rate)
        for inputs, wanted in DataLoader(TensorDataset(points, targets), 8, shuffle=True):
            optimizer.zero_grad()
            loss_of(net(inputs), wanted).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "one batch learned"]


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch) -> None:
    """Let all questions be asked."""
    monkeypatch.setattr(asking, "_CREDIT", 10.0)


@pytest.mark.parametrize(("rate", "learns"), [(0.05, 1.0), (1e-4, 100.0), (1e-12, math.inf)])
def test_a_rate_that_learns(rate, learns) -> None:
    """The run's own; another one, which is then the matter; or steps that have no rate."""
    events = ask(rate=rate)
    assert {event.numbers for event in events} == {(learns,)}
    assert all(event.outcome == "answered" for event in events)


def of_all_pairs(scores, wanted) -> torch.Tensor:
    """Return the distance of each score from each target."""
    return F.mse_loss(scores, wanted.squeeze(1))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_batch_that_no_rate_learns() -> None:
    """What no wiring carries is not learned at any rate; two steps are asked."""
    events = ask(of_all_pairs)
    assert [(event.step, event.numbers) for event in events] == [(1, (0.0,)), (2, (0.0,))]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"width": 2}, "the model is too small to learn a batch by heart"),
        ({"targets": torch.ones(64, 1)}, "a constant loses nothing, or what it loses is not known"),
        (
            {"loss_of": lambda s, w: F.mse_loss(s, w) + s.abs().mean()},
            "the loss is not that of one loss function of torch",
        ),
        (
            {"loss_of": lambda s, w: -F.mse_loss(s, w)},
            "the loss is not that of one loss function of torch",
        ),
        (
            {"loss_of": lambda s, w: F.mse_loss(s, w + next(TURNS))},
            "the targets of one batch change",
        ),
    ],
)
def test_when_nobody_can_tell(options, reason) -> None:
    """Each reason is told, and the question is not asked again."""
    (event,) = ask(**options)
    assert (event.outcome, event.reason) == ("void", reason)
