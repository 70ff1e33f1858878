"""Schedules beside optimizers that go on from a state."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def go_on(*, restored: bool, first: int = 40) -> list[tuple[float, float]]:
    """Train, go on with another model and optimizer, and return what was seen of the rate."""
    torch.manual_seed(0)
    states: list[dict] = []
    with Recorder("x") as recorder:
        for steps in (first, 4):
            model = nn.Linear(3, 1)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
            if states:
                optimizer.load_state_dict(states[0])
                if restored:
                    schedule.load_state_dict(states[1])
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.randn(8, 3)).square().mean().backward()
                optimizer.step()
                schedule.step()
            states = [optimizer.state_dict(), schedule.state_dict()]
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "resumed rate"]
    return [(probe.measured, probe.reference) for probe in found]


@pytest.mark.parametrize("first", [40, 300])
def test_a_schedule_that_begins_anew_is_told(first: int) -> None:
    """Whether the first step after the load was looked at, or not."""
    assert go_on(restored=False, first=first) == [(pytest.approx(0.01), pytest.approx(0.1))]


def test_a_schedule_that_goes_on_is_left_alone() -> None:
    """Its own state was loaded, too."""
    assert go_on(restored=True) == []
