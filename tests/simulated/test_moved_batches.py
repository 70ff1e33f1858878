"""The batches of a loader are known on a device that they were moved to, without a wait for it."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.simulated.device import counts
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.host_copies import HostCopies


def train(device: str, change=lambda batch: batch):
    """Train on rows of a loader, a third of which are validated again, and return the trace."""
    torch.manual_seed(0)
    rows = torch.randn(96, 18)
    data = TensorDataset(rows, rows[:, :1] * 2)
    net = nn.Linear(18, 1).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("moved", probe=False) as recorder:
        for _ in range(4):
            for inputs, target in DataLoader(data, 16, shuffle=True):
                inputs, target = change(inputs.to(device)), target.to(device)
                optimizer.zero_grad()
                F.mse_loss(net(inputs), target).backward()
                optimizer.step()
            with torch.no_grad():
                held_out = DataLoader(TensorDataset(torch.cat([rows[:16], -rows[:16]])), 32)
                for (inputs,) in held_out:
                    net(inputs.to(device))
    assert not recorder.trace.conditions.get("faults")
    return recorder.trace


def prints(trace) -> list[tuple[int, ...]]:
    """Return the fingerprints of the inputs of each step."""
    return [event.fingerprints for event in trace.events if isinstance(event, Step)]


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x.view(16, 2, 9).flatten(1)])
def test_a_moved_batch_has_the_rows_of_the_loader(part, device):
    """Fingerprints are those of the host, and rows that are evaluated too are known again."""
    there, here = train(device, part), train("cpu", part)
    assert prints(there) == prints(here)
    assert all(map(all, prints(there)))
    found = [
        {(event.probe, event.measured) for event in trace.events if isinstance(event, Probe)}
        for trace in (there, here)
    ]
    assert "overlap" in {probe for probe, _ in found[0]}
    assert found[0] == found[1]


def test_a_batch_that_is_written_to_on_the_device_is_not_known(device):
    """Nothing is said of rows that are no more those of the loader."""
    assert not any(map(any, prints(train(device, lambda x: x.add_(1)))))


def test_parts_of_a_copy_are_parts_of_its_source(device):
    """Views show the same numbers on both sides, nothing is waited for, and nothing is kept."""
    copies, before = HostCopies(), counts()
    host = torch.arange(64.0).view(8, 8)[:, :6].contiguous()
    moved = host.to(device)
    copies.add(host, moved)
    views = (moved[2:, ::2], moved.T, moved.flatten()[5:])
    found = [copies.find(view) for view in (moved, *views)]
    assert (counts() - before).waits == 0
    for view, own in zip((moved, *views), found, strict=True):
        assert own is not None
        assert torch.equal(own, view.cpu())
    gone = weakref.ref(host)
    del host, moved, views, view, own, found
    gc.collect()
    assert gone() is None
