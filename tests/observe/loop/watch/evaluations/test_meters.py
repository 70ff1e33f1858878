"""Meters: what adds up over evaluations, and what is said of it."""

import pytest
import torch
from torch import nn

from trainguard.events.loop import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.evaluations.meters import _numbers_of


class Sums:
    """Two numbers."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, values):
        """Add some."""
        self.total += float(values.sum())
        self.count += len(values)

    def mean(self):
        """Return their mean."""
        return self.total / self.count


class Lists(Sums):
    """All numbers."""

    def __init__(self):
        self.values = []

    def add(self, values):
        """Add some."""
        self.values.append(values)

    def mean(self):
        """Return their mean."""
        return float(torch.cat(self.values).mean())


def found(make, begins_anew, says) -> list[tuple[float, float]]:
    """Train and evaluate in turns, and return what was found."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net, meter = nn.Linear(3, 1), make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for epoch in range(5):
            net(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            meter = make() if begins_anew else meter
            with torch.no_grad():
                for _ in range(2):
                    meter.add(net(torch.randn(6, 3))[:, 0].square() + epoch)
            print(says(meter))
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [(probe.measured, probe.reference) for probe in probes if probe.probe == "meter"]


@pytest.mark.parametrize("make", [Sums, Lists])
def test_what_is_said(make, capsys) -> None:
    """A mean over earlier evaluations is told of, as it is or in percent, and no other number."""
    assert found(make, False, lambda meter: f"error: {meter.mean():.5f}") == [(48.0, 12.0)]
    assert found(make, False, lambda meter: f"error: {100 * meter.mean():.2f}") == [(48.0, 12.0)]
    assert found(make, True, lambda meter: f"error: {meter.mean():.5f}") == []
    assert found(make, False, lambda meter: f"error: {2 * meter.mean():.5f}") == []
    assert found(make, False, lambda _: "nothing") == []


def test_numbers() -> None:
    """They are read of whatever has few, and of nothing else."""
    assert _numbers_of({"a": 1, "b": torch.tensor(2.0), "c": "3", 4: 4}) == {"a": 1.0, "b": 2.0}
    assert _numbers_of([1, 2.5]) == {"len()": 2.0, "sum()": 3.5}
    assert _numbers_of([torch.ones(3), torch.zeros(2)]) == {"len()": 5.0, "sum()": 3.0}
    for other in (nn, nn.Linear, torch.ones(2), [torch.ones(2, 2)], ["a"], 3, None):
        assert _numbers_of(other) == {}
