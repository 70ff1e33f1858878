"""Columns of a loss that go with each other's targets."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def crossed(loss_of, steps=40) -> list[Probe]:
    """Record a network that adds little to places that it is told, and return what was found."""
    torch.manual_seed(0)
    with Recorder("x", probe=False) as recorder:
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3), nn.Tanh())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            places = 3 * torch.randn(32, 3)
            optimizer.zero_grad()
            loss_of(places + net(places), places).backward()
            optimizer.step()
    assert "crossed" in recorder.trace.conditions["looked"]
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "crossed"]


def test_columns_that_are_exchanged() -> None:
    """Two of three columns are told, in each step that was looked at, at the line of the loss."""
    (probe,) = crossed(lambda found, places: F.l1_loss(found[:, [0, 2, 1]], places))
    assert (probe.measured, probe.reference, probe.label) == (6.0, 6.0, "columns 1 and 2")
    assert probe.source.startswith(__file__)


def either(found, places):
    """Return the loss of the better of two orders."""
    same, turned = F.mse_loss(found, places), F.mse_loss(found, places[:, [1, 0, 2]])
    return torch.minimum(same, turned)


def alike(found, places):
    """Compare columns whose targets go together."""
    places = places[:, :1] + 0.1 * places
    return F.mse_loss(places.flip(1) + 0 * found, places)


@pytest.mark.parametrize("loss_of", [F.mse_loss, either, alike])
def test_columns_in_their_places(loss_of) -> None:
    """Own targets, orders of which one fits, and targets that are alike are no matter."""
    assert crossed(loss_of) == []
