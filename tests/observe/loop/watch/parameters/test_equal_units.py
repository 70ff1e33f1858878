"""Layers whose units begin alike, and whether they come apart."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def told(set_weights, steps: int = 30, rate: float = 0.05, biases: bool = False) -> list[Probe]:
    """Train a network of two layers whose weights were set, and return what is told of them."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
        set_weights(net)
        for part in () if biases else (net[0], net[2]):
            nn.init.zeros_(part.bias)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        x, y = torch.randn(64, 6), torch.randn(64, 8)
        for _ in range(steps):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and "units" in e.probe]


def found(set_weights, **options) -> list[Probe]:
    """Return what is told of units that stay alike."""
    return [probe for probe in told(set_weights, **options) if probe.probe == "equal units"]


def set_all(net: nn.Sequential) -> None:
    """Set all weights to one number."""
    for part in (net[0], net[2]):
        nn.init.constant_(part.weight, 0.1)


def set_by_hand(net: nn.Sequential) -> None:
    """Set the weights of the first layer without torch.nn.init, and the last to zero."""
    net[0].weight.data.fill_(0.1)
    nn.init.zeros_(net[2].weight)


def set_rows(net: nn.Sequential) -> None:
    """Give each unit of the first layer the same row, over a head that was drawn."""
    net[0].weight.data[:] = net[0].weight.data[0].clone()


def test_units_that_stay_alike_are_found() -> None:
    """The hidden layer is one unit; the targets tell those of the last one apart."""
    (probe,) = found(set_all)
    assert (probe.measured, probe.reference) == (16, 1)
    assert probe.source.startswith(__file__)


def test_the_line_is_not_known_of_what_is_set_by_hand() -> None:
    """The layer is named nevertheless."""
    (probe,) = found(set_by_hand)
    assert probe.source == ""
    assert probe.label.endswith("0.weight")


def test_units_that_begin_alike_and_come_apart() -> None:
    """Biases tell them apart; it is a cause where the model learns nothing. Zeros are none."""
    (probe,) = told(set_all, biases=True)
    assert (probe.probe, probe.measured, probe.reference) == ("units begun equal", 16, 2)
    assert told(lambda net: nn.init.zeros_(net[2].weight)) == []


@pytest.mark.parametrize(
    ("set_weights", "options"),
    [
        (lambda net: None, {}),
        (lambda net: nn.init.zeros_(net[2].weight), {}),
        (set_rows, {}),
        (set_all, {"steps": 12}),
        (set_all, {"rate": 1e-9}),
    ],
    ids=["drawn", "zero head", "read apart", "few steps", "no rate"],
)
def test_units_that_come_apart_or_hardly_began_are_fine(set_weights, options) -> None:
    """A head that was drawn reads each unit by itself, so that they differ soon."""
    assert found(set_weights, **options) == []


def test_where_no_layer_has_several_units_nothing_was_looked_at() -> None:
    """A pass that saw no layer is no pass."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    assert "equal units" not in recorder.trace.conditions["looked"]
