"""Numbers that stand for what is missing: alone, again and again, and far away."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(rows: torch.Tensor) -> list[Probe]:
    """Learn from rows, and return what stands for what is missing."""
    model = nn.Linear(rows.shape[-1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with Recorder("x") as recorder:
        for part in rows.split(40):
            optimizer.zero_grad()
            model(part).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert "stand-in" in recorder.trace.conditions["looked"]
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "stand-in"]


def with_gaps(value: float, share: float = 0.03, size: tuple[int, ...] = (400, 6)) -> torch.Tensor:
    """Return measurements of which a share is a number."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(size, generator=generator) * 5 + 12
    return rows.masked_fill(torch.rand(size, generator=generator) < share, value)


@pytest.mark.parametrize("value", [-9999.0, 1e6])
@pytest.mark.parametrize("size", [(400, 6), (400, 7, 6)])
def test_a_number_far_away_is_found(value, size) -> None:
    """Below and above the others, in tables and in series."""
    (probe,) = found(with_gaps(value, size=size))
    assert (probe.measured, probe.reference) == (6, 6)
    assert float(probe.label.split()[0]) == value
    assert probe.label.endswith(" 0")


def test_a_scale_that_was_taken_with_it_is_told() -> None:
    """Nothing is left of the differences."""
    rows = with_gaps(-9999.0)
    (probe,) = found((rows - rows.mean(0)) / rows.std(0))
    assert probe.label.endswith(" 1")


def pad(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of which some are padding."""
    rows[::9] = 1e6
    return rows


def twice(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of which two have one number far away in a column."""
    rows[3:5, 2] = -9999.0
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        with_gaps(-9999.0, 0.0),
        with_gaps(0.0, 0.6),  # nothing happens, most of the time
        with_gaps(-40.0),  # far, but no further than the logarithm of nearly zero
        with_gaps(-9999.0, 0.0).round().clamp(0, 5).masked_fill_(torch.eye(400, 6) > 0, 999.0),
        pad(with_gaps(0.0, 0.0)),
        torch.eye(6)[torch.randint(0, 6, (400,))] * 1000,
        twice(with_gaps(0.0, 0.0)),
        with_gaps(-9999.0, 0.6),
    ],
    ids=["none", "mostly", "near", "codes", "padding", "one of six", "twice", "far and mostly"],
)
def test_other_numbers_are_fine(rows) -> None:
    """What is no stand-in for certain."""
    assert found(rows) == []
