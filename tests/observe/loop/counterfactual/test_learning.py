"""One batch learned: what brings its loss below that of a constant."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
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
    """What no wiring carries is not learned at any rate; two steps are asked, as time allows."""
    events = ask(of_all_pairs)
    assert [event.numbers for event in events] == [(0.0,), (0.0,)]


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


def by_order(order_of) -> Iterator[torch.Tensor]:
    """Yield rows of a table in an order that is drawn for each epoch."""
    table = torch.randn(128, 6)
    for _ in range(2):
        order = order_of(128)
        for begin in range(0, 128, 8):
            yield table[order[begin : begin + 8]]


def by_generators() -> Iterator[torch.Tensor]:
    """Yield what three generators draw, one of them held by an object."""
    held, numpys = {"own": torch.Generator().manual_seed(1)}, np.random.default_rng(2)
    for _ in range(12):
        drawn = torch.randn(8, 6, generator=held["own"]) + torch.randn(1)
        yield drawn + torch.from_numpy(numpys.normal(size=(8, 6))).float()


def by_place() -> Iterator[torch.Tensor]:
    """Yield what follows from how many steps were made."""
    yield from torch.linspace(-2, 2, 12 * 48).view(12, 8, 6)


@pytest.mark.parametrize(
    ("batches", "outcome"),
    [
        (lambda: by_order(torch.randperm), "answered"),
        (lambda: by_order(np.random.default_rng(0).permutation), "answered"),
        (by_generators, "answered"),
        (by_place, "void"),
    ],
)
def test_a_batch_that_no_loader_serves(batches, outcome) -> None:
    """It comes again by the numbers that are drawn, or by the order of rows, and not otherwise."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        made = []
        for inputs in batches():
            optimizer.zero_grad()
            loss = F.mse_loss(net(inputs), inputs.sum(1, keepdim=True).sin())
            loss.backward()
            optimizer.step()
            made.append(inputs)
    assert len({tuple(each.ravel().tolist()) for each in made}) == len(made)  # here, nothing is
    asked = [e for e in recorder.trace if isinstance(e, WhatIf)]
    events = [e for e in asked if e.question in ("one batch learned", "the same batch again")]
    assert {event.outcome for event in events} == {outcome}, events
    if outcome == "answered":
        assert all(b < a for e in events for a, b in itertools.pairwise(e.numbers[:3]))
    else:
        assert {event.reason for event in events} == {"the batch does not come again"}
