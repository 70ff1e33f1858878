"""What the workers of a loader would do is tried where that can be, and does no harm elsewhere."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainguard.observe.loop.recorder import Recorder

ROWS = [(torch.full((4,), float(row)), torch.ones(1)) for row in range(32)]


def do_nothing(worker: int) -> None:
    """Be a `worker_init_fn`: with one, samples are tried."""


def test_a_list_is_served_by_workers() -> None:
    """A list can be a data set too, and has no weak references: it is left alone."""
    with Recorder("x") as recorder:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for inputs, targets in DataLoader(ROWS, 8, num_workers=1, worker_init_fn=do_nothing):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert recorder.steps == 4
