"""Boxes whose overlap is computed by their corners, and how many of them begin after their end."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Overlap = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CENTRES = torch.cat([torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) + 1] * 2, 1)
CENTRES[:, 2:] = 0.2  # wide, and high
CORNERS = torch.cat([CENTRES[:, :2] - 0.1, CENTRES[:, :2] + 0.1], 1)

CHANGED, ALIKE = CENTRES.clone(), CENTRES[:1].repeat(20, 1)


def pairs(ones: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the area that each box has in common with each other one."""
    begin = torch.max(ones[:, None, :2], others[None, :, :2])
    return (torch.min(ones[:, None, 2:], others[None, :, 2:]) - begin).clamp(min=0).prod(2)


def columns(ones: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the same, column by column, and the other corner first."""
    right = torch.minimum(ones[:, 2, None], others[:, 2])
    left = torch.maximum(ones[:, 0, None], others[:, 0])
    low = torch.minimum(ones[:, 3, None], others[:, 3])
    high = torch.maximum(ones[:, 1, None], others[:, 1])
    return (right - left).clamp(min=0) * (low - high).clamp(min=0)


def around(ones: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the area of what is around both: the smaller corner, and the larger."""
    begin = torch.min(ones[:, None, :2], others[None, :, :2])
    return (torch.max(ones[:, None, 2:], others[None, :, 2:]) - begin).prod(2)


def sizes(ones: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the area of the smaller width and height, as anchors of one centre have it."""
    return torch.min(ones[:, None, 2:], others[None, :, 2:]).prod(2)


def seen(overlap: Overlap, boxes: Callable[[], torch.Tensor], steps: int = 6) -> list[Probe]:
    """Record a training that compares boxes with labels."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(steps):
            labels = torch.rand(3, 2).repeat(1, 2) + torch.tensor([0, 0, 1, 1])
            near = overlap(boxes(), labels).sum()
            optimizer.zero_grad()
            (net(torch.randn(8, 4)) * near).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "corners"]


@pytest.mark.parametrize("overlap", [pairs, columns])
def test_centres_are_no_corners(overlap: Overlap) -> None:
    """Every centre here is larger than its size; the table is told of where it was compared."""
    probes = seen(overlap, lambda: CENTRES)
    assert {(probe.measured, probe.reference) for probe in probes} == {(20.0, 20.0)}
    assert {probe.source.rpartition(":")[0] for probe in probes} == {__file__}


def test_a_part_of_a_table() -> None:
    """All of a table is looked at, whatever is taken of it."""
    (probe,) = seen(pairs, lambda: CENTRES[:6])
    assert probe.reference == 20


def test_columns_behind_others() -> None:
    """A class may stand before the numbers of a box; what pads counts once."""
    padded = torch.cat([CENTRES, torch.zeros(40, 4)])
    table = torch.cat([torch.ones(60, 1), padded], 1)
    (probe,) = seen(pairs, lambda: table[:, 1:])
    assert (probe.measured, probe.reference) == (20.0, 21.0)


@pytest.mark.parametrize(
    ("overlap", "boxes"),
    [
        (pairs, lambda: CORNERS),
        (around, lambda: CENTRES),
        (sizes, lambda: CENTRES),
        (pairs, CENTRES[:7].clone),
        (pairs, lambda: CENTRES + 0),
        (pairs, lambda: CHANGED.add_(0.0)),
        (pairs, lambda: ALIKE),
    ],
    ids=["corners", "around both", "sizes alone", "few", "made anew", "changed", "all alike"],
)
def test_nothing_is_told(overlap: Overlap, boxes: Callable[[], torch.Tensor]) -> None:
    """Of corners, of other areas, of what a model may have predicted."""
    assert seen(overlap, boxes) == []


def test_two_calls_may_be_of_one_prediction() -> None:
    """The third, after a step, is not."""
    assert seen(pairs, lambda: CENTRES, steps=2) == []
    assert len(seen(pairs, lambda: CENTRES, steps=3)) == 1
