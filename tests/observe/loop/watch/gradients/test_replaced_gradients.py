"""Gradients that are not finite, and that something replaces before the step."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(guard: Callable[[nn.Module], object], bad: Callable[[int], bool]) -> list[tuple]:
    """Train with some gradients that are not finite and a guard; return what is told."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(20):
            optimizer.zero_grad()
            out = net(torch.randn(4, 3))
            loss = out.square().mean()
            if bad(step):
                loss = loss + (out * 0).sqrt().sum()  # no number but zero, with no slope but nan
            loss.backward()
            guard(net)
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "replaced"]
    return [(probe.measured, probe.reference, probe.label) for probe in probes]


@torch.no_grad()
def to_zero(net: nn.Module) -> None:
    """Put zeros for what is no number."""
    for p in net.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)


@torch.no_grad()
def to_one(net: nn.Module) -> None:
    """Put ones for it, in new tensors."""
    for p in net.parameters():
        p.grad = torch.where(p.grad.isfinite(), p.grad, 1.0)


@pytest.mark.parametrize(("guard", "label"), [(to_zero, "zero"), (to_one, "")])
def test_a_guard_in_every_step(guard: Callable, label: str) -> None:
    """In place or not, it is told what is left."""
    assert found(guard, lambda step: True) == [(6.0, 6.0, label)]


def test_a_guard_now_and_then() -> None:
    """What it does in some steps is counted; nothing where there is nothing to do."""
    assert found(to_zero, lambda step: step == 4) == [(1.0, 6.0, "zero")]
    assert found(to_zero, lambda step: False) == []


def test_gradients_that_stay_as_they_are() -> None:
    """Without a guard the step is made with them, which is judged elsewhere."""
    assert found(lambda net: None, lambda step: step == 19) == []
