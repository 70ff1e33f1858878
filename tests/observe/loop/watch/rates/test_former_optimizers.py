"""Optimizers that take the place of others, and the schedulers of these."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def sgd(params) -> torch.optim.Optimizer:
    """Return an optimizer of some parameters."""
    return torch.optim.SGD(params, lr=0.1)


def looks(follow, *, second=sgd, thaws=True, turns=4, first_steps=3):
    """Train a head, then all; return what was seen, and whether there was something to see."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))

    def fit(optimizer) -> None:
        """Make a step."""
        batch = torch.randn(8, 4)
        optimizer.zero_grad()
        F.mse_loss(model(batch), batch.sum(1, keepdim=True)).backward()
        optimizer.step()

    with Recorder("x") as recorder:
        former = sgd(model[1].parameters())
        scheduler = StepLR(former, 2)
        for _ in range(first_steps):
            fit(former)
            scheduler.step()
        after = second(model.parameters() if thaws else model[0].parameters())
        schedulers = follow(scheduler, after)
        for _ in range(turns):
            fit(after)
            for each in schedulers:
                each.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "former optimizer"]
    return found, "former optimizer" in str(recorder.trace.conditions["looked"])


@pytest.mark.parametrize("first_steps", [3, 400])
def test_a_scheduler_that_stays_behind(first_steps) -> None:
    """It is told how often it was advanced since, and where, in a long run too."""
    turns = 4 if first_steps < 256 else 60
    (probe,), _ = looks(lambda old, _: [old], first_steps=first_steps, turns=turns)
    assert probe.label == "StepLR of SGD"
    assert probe.reference == first_steps + turns
    assert 2 <= probe.measured <= turns
    assert probe.source.startswith(__file__)


@pytest.mark.parametrize(
    ("follow", "options"),
    [
        (lambda *_: [], {}),
        (lambda _, new: [StepLR(new, 2)], {}),
        (lambda old, new: [old, StepLR(new, 2)], {}),
    ],
    ids=["none", "its own", "both"],
)
def test_what_is_meant(follow, options) -> None:
    """A schedule that ends, and one of the new optimizer."""
    assert looks(follow, **options) == ([], True)


@pytest.mark.parametrize(
    "options",
    [
        {"second": lambda params: torch.optim.Adam(params, lr=1e-3)},
        {"thaws": False},
    ],
    ids=["another class", "other parameters"],
)
def test_optimizers_that_take_no_place(options) -> None:
    """Then nothing is to be seen."""
    assert looks(lambda old, _: [old], **options) == ([], False)


def test_optimizers_that_take_turns() -> None:
    """The former one goes on."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    with Recorder("x") as recorder:
        one, other = sgd(model.parameters()), sgd(model.parameters())
        scheduler = StepLR(one, 2)
        for turn in range(8):
            optimizer = (one, other)[turn % 2]
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
            optimizer.step()
            scheduler.step()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "former optimizer"]
    assert found == []
