"""What we try leaves the random numbers of every device as they were."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.isolation import checksum_streams, isolate, keep_streams


def draw() -> list[list[float]]:
    """Draw from every stream."""
    own = [torch.rand(2, device=device).tolist() for device in ("cpu", "sim:0", "sim:1")]
    return [*own, [random.random()], np.random.rand(1).tolist()]


@pytest.mark.parametrize("block", [isolate, keep_streams])
def test_a_block_puts_streams_back(block):
    """What is drawn inside of a block is drawn again after it."""
    torch.manual_seed(0)
    before = checksum_streams()
    with block():
        inside = draw()
    assert checksum_streams() == before
    assert {"sim:0", "sim:1"} <= before.keys()
    if block is keep_streams:
        assert draw() == inside


def test_a_block_is_seeded():
    """The streams of devices begin with the seed of the block too."""
    with isolate(3):
        first = draw()
    torch.rand(5, device="sim:1")
    with isolate(3):
        assert draw() == first


class Noisy(nn.Module):
    """Draws on its device, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, inputs):
        """Return a noisy prediction."""
        return self.head(inputs + 0.1 * torch.randn_like(inputs))


def train(device: str) -> list[float]:
    """Train with noise and evaluate at each step; return the losses."""
    torch.manual_seed(0)
    net = Noisy().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(6):
        inputs = torch.randn(8, 4, device=device)
        target = inputs.sum(1, keepdim=True)
        loss = nn.functional.mse_loss(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            losses += [loss.item(), nn.functional.mse_loss(net(inputs), target).item()]
        net.train()
    return losses


def test_probes_put_streams_back(device):
    """A training that draws on a device has the same losses with probes, and was probed."""
    plain = train(device)
    with Recorder("noisy", probe=True) as recorder:
        assert train(device) == plain
    assert recorder.trace.conditions["looked"]
