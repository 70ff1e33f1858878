"""Targets that a loss leaves out though their class has a name, and where it got its number."""

import linecache

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainguard.events.origin import Origin
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

EOS = 1
PAD = EOS


def record(ends: bool) -> tuple[list[Probe], list[Origin]]:
    """Train on sequences, of which each or not each ends with the end."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 6), torch.randn(8, 5, 4)
    targets = torch.randint(2, 6, (8, 5))
    targets[:, -1] = EOS
    targets[0, -1] = EOS if ends else 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            cross_entropy(model(x).transpose(1, 2), targets, ignore_index=PAD).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "ignored"]
    origins = [e for e in recorder.trace if isinstance(e, Origin) and e.name == "ignored class"]
    return probes, origins


def test_the_line_that_makes_it_the_padding_is_told() -> None:
    """`PAD = EOS`, beside how many targets are left out."""
    ((probe,), (origin,)) = record(ends=True)
    assert (probe.measured, probe.reference, probe.label) == (32, 160, "EOS")
    file, _, line = origin.source.rpartition(":")
    assert (file, linecache.getline(file, int(line))) == (__file__, "PAD = EOS\n")


def test_an_end_that_fills_up_as_padding_does() -> None:
    """Where a sequence goes on to the last place, it is not the end of all."""
    assert record(ends=False) == ([], [])
