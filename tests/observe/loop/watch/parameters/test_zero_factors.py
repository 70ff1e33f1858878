"""Products of two narrow matrices that are both zero."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Adapter(nn.Module):
    """A product of two narrow matrices."""

    def __init__(self, down: float, up: float) -> None:
        super().__init__()
        self.down = nn.Parameter(down * torch.ones(6, 2))
        self.up = nn.Parameter(up * torch.ones(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many numbers."""
        return x + x @ self.down @ self.up


def draw(adapter: Adapter, _: object) -> None:
    """Set a factor before a pass."""
    adapter.down.data.fill_(0.1)


def forget(learned: bool) -> list[float]:
    """Train an adapter that is gone when the recording ends; return what is told."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = nn.Sequential(Adapter(0.0, 0.0), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            if learned and step == 3:
                draw(model[0], None)
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
        del model, optimizer
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "zero factors"]
    return [probe.measured for probe in probes]


def test_products_that_are_gone() -> None:
    """What they last were is known."""
    assert forget(learned=False) == [1]
    assert forget(learned=True) == []


def found(adapter: Adapter, *, hold: bool = True, late: bool = False) -> list[float]:
    """Train a head behind an adapter, in a second training if it is late; return what is told."""
    torch.manual_seed(0)
    first, head = nn.Linear(6, 6), nn.Linear(6, 1)
    with Recorder("x") as recorder:
        for model, steps in [(first, 300), (adapter, 12)] if late else [(adapter, 12)]:
            own = [*model.parameters()] if hold else []
            optimizer = torch.optim.SGD([*own, *head.parameters()], lr=0.1)
            for _ in range(steps):
                optimizer.zero_grad()
                head(model(torch.randn(8, 6))).square().mean().backward()
                optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "zero factors"]
    return [probe.measured for probe in probes]


@pytest.mark.parametrize("late", [False, True])
def test_two_zeros_are_told(late: bool) -> None:
    """In a later training, too, of which the first step was not seen."""
    assert found(Adapter(0.0, 0.0), late=late) == [1]


def test_products_that_can_learn_are_left_alone() -> None:
    """Those of which one is not zero, those that no optimizer holds, and those that move later."""
    assert found(Adapter(1.0, 0.0)) == found(Adapter(0.0, 1.0)) == []
    assert found(Adapter(0.0, 0.0), hold=False) == []
    drawn = Adapter(0.0, 0.0)
    drawn.register_forward_pre_hook(draw)
    assert found(drawn) == []
