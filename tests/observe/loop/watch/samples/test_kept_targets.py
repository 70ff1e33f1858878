"""Noise that a model is to tell, the same in every step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("once", [False, True])
def test_noise_of_a_seed(by_hand: bool, once: bool) -> None:
    """A generator that is seeded in each call draws the same noise for other samples."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    generator = torch.Generator().manual_seed(1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(20):
            data = torch.rand(32, 4)
            generator = generator.manual_seed(1) if once else generator
            noise = torch.randn(32, 4, generator=generator)
            told = net(0.7 * data + 0.7 * noise)
            loss = (told - noise).pow(2).mean() if by_hand else F.mse_loss(told, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "kept noise"]
    assert [probe.measured for probe in probes] == [5.0] * once
