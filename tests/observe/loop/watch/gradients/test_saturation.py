"""Softmax over one element, which returns 1 and gives back zeros."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Pooling(nn.Module):
    """Means of rows, weighed by scores of theirs."""

    def __init__(self, weigh: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.score, self.head, self.weigh = nn.Linear(4, 1), nn.Linear(4, 1), weigh

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a number for each sample of rows (N, T, 4)."""
        return self.head((self.weigh(self.score(rows)) * rows).sum(1))


def found(weigh: Callable[[torch.Tensor], torch.Tensor], length: int = 5) -> list[str]:
    """Train with one way of weighing; return what is told."""
    torch.manual_seed(0)
    model = Pooling(weigh)
    with Recorder("x") as recorder:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(30):
            rows = torch.randn(8, length, 4)
            optimizer.zero_grad()
            (model(rows)[:, 0] - rows.amax((1, 2))).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "saturated"]
    return sorted({probe.label.rpartition(" ")[2] for probe in probes})


@SHAPES
@pytest.mark.parametrize("axis", [-1, 2])
def test_a_softmax_over_one_element(axis: int) -> None:
    """The scores behind it never learn, whichever way its axis is written."""
    assert found(lambda scores: scores.softmax(axis)) == ["softmax"]
    assert found(lambda scores: scores.log_softmax(axis).exp()) == ["log_softmax"]


@SHAPES
def test_a_softmax_over_places() -> None:
    """It gives gradients back; not where there is one place alone, which is told too."""
    assert found(lambda scores: scores.softmax(1)) == []
    assert found(lambda scores: scores.softmax(1), length=1) == ["softmax"]
    assert found(torch.sigmoid) == []
