"""Schedules beside optimizers that go on from a state."""

import copy

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


def go_on_with(
    rate: float,
    after: float | None = None,
    *,
    begun: float | None = 0.3,
    schedule: float = 0.0,
    used: bool = False,
) -> list[tuple[float, float, int, str]]:
    """Load a state that has ended at 1e-4 into an optimizer of some rate; return what is told."""
    model = nn.Linear(3, 1)
    with Recorder("x") as recorder:
        first = torch.optim.Adam(model.parameters(), lr=begun or 1e-4)
        if begun is not None:
            LambdaLR(first, lambda _: 1.0)
            first.param_groups[0]["lr"] = 1e-4
        model(torch.randn(8, 3)).square().mean().backward()
        first.step()
        second = torch.optim.Adam(model.parameters(), lr=rate)
        if used:
            second.step()
        second.load_state_dict(first.state_dict())
        if after is not None:
            second.param_groups[0]["lr"] = after
        scheduler = LambdaLR(second, lambda _: schedule) if schedule else None
        for _ in range(10):
            second.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            second.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert (scheduler is not None) == bool(schedule)
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "loaded rate"]
    return [(probe.measured, probe.reference, probe.step, probe.label) for probe in found]


def test_a_rate_that_a_state_has_replaced() -> None:
    """It is told with that which a schedule of the state began with, if that is another one."""
    assert go_on_with(0.02) == [(1e-4, 0.02, 10, "0.3")]
    assert go_on_with(0.3) == [(1e-4, 0.3, 10, "")]
    assert go_on_with(0.02, begun=None) == [(1e-4, 0.02, 10, "")]


def test_rates_that_are_set_after_the_load() -> None:
    """By hand, by a scheduler, or by nobody, where both are one."""
    assert go_on_with(0.02, after=0.01) == []
    assert go_on_with(0.02, schedule=1.0) == []
    assert go_on_with(0.02, schedule=1e-4 / 0.3) == []
    assert go_on_with(1e-4) == []


def test_an_optimizer_that_has_stepped() -> None:
    """A state that it is given later may be one of its own."""
    assert go_on_with(0.02, used=True) == []


def load_after(optimizer, state, rate) -> None:
    """Set a rate, and load a state with another one."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.load_state_dict(state)


def load_before(optimizer, state, rate) -> None:
    """Load the state first."""
    optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = rate


def load_after_a_step(optimizer, state, rate) -> None:
    """Make a step with the rate."""
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    optimizer.load_state_dict(state)


def load_where_a_rate_is_read(optimizer, state, rate) -> None:
    """Read the rate, and set it elsewhere."""
    if rate:
        optimizer.param_groups[0]["lr"] = rate
    else:
        optimizer.load_state_dict(state)
    if optimizer.param_groups[0]["lr"] == rate:
        optimizer.load_state_dict(state)


def load_after_a_read(optimizer, state, rate) -> None:
    """Read a rate that something else has set."""
    load_before(optimizer, state, rate)
    told = optimizer.param_groups[0]["lr"]
    optimizer.load_state_dict(state)
    assert told == rate


@pytest.mark.parametrize(
    ("load", "rate", "lost"),
    [
        (load_after, 0.02, [(0.3, 0.02, 10)]),
        (load_after, 0.3, []),
        (load_before, 0.02, []),
        (load_after_a_step, 0.02, []),
        (load_after_a_read, 0.02, []),
        (load_where_a_rate_is_read, 0.02, []),
    ],
)
def test_a_rate_that_is_set_before_a_load(load, rate, lost) -> None:
    """It is lost where the next statements load a state with another one."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    with Recorder("x") as recorder:
        for step in range(22):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            if step == 5:
                best = copy.deepcopy(optimizer.state_dict())
            if step == 11:
                load(optimizer, best, rate)
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "lost rate"]
    assert [(probe.measured, probe.reference, probe.step) for probe in found] == lost
