"""Memory is told of the device that a training is on, and so are curves."""

import pytest
import torch
from torch import nn

from tests.simulated.trainings import regression
from trainguard.events.loop import Step
from trainguard.observe.loop.recorder import Recorder


def record(device: str):
    """Return the trace of a short training."""
    with Recorder("regression", probe=False) as recorder:
        regression(device, 12, lambda: None)
    return recorder.trace


def test_the_memory_of_a_step_is_that_of_its_device(device):
    """Megabytes held elsewhere, on the host or on the other device, are not in the row."""
    other = "sim:0" if device == "sim:1" else "sim:1"
    held = [torch.zeros(10**6, device=other), torch.zeros(10**6)]
    before = torch.sim.memory_allocated(device)
    memory = [event.memory for event in record(device).events if isinstance(event, Step)]
    del held
    assert max(memory) - before < 10**5
    assert max(memory) > before


def test_memory_that_is_kept_shows(device):
    """What a training keeps of each step is in the row of its device."""
    kept = []
    net = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("keeps", probe=False) as recorder:
        for _ in range(8):
            optimizer.zero_grad()
            net(torch.ones(4, 8, device=device)).square().mean().backward()
            optimizer.step()
            kept.append(torch.zeros(10**5, device=device))
    memory = [event.memory for event in recorder.trace.events if isinstance(event, Step)]
    assert memory[7] - memory[1] == pytest.approx(6 * 4 * 10**5, abs=10**4)


def test_curves_are_kept_by_device(device):
    """The conditions of a run, by which its snapshot is chosen, name the type of device."""
    conditions = record(device).conditions
    assert conditions["device"] == "sim"
    assert conditions["hardware"] == "simulated accelerator"
