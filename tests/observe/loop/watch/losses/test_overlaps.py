"""Overlaps of masks with probabilities and with other numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Scores(nn.Linear):
    """Returns scores of both signs."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return numbers that are no probabilities."""
        return 3 * super().forward(rows)


class Probabilities(nn.Linear):
    """Returns numbers between zero and one."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what a loss may take as it is."""
        return super().forward(rows).sigmoid()


def looks(make: Loss, kind: type[nn.Linear] = Scores) -> list[tuple[float, float]]:
    """Make five steps with a loss of scores and a mask (8, 20), and return what was seen."""
    torch.manual_seed(0)
    model = kind(3, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(5):
            optimizer.zero_grad()
            make(model(torch.randn(8, 3)), (torch.rand(8, 20) > 0.5).float()).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "overlap loss"]
    return [(probe.measured, probe.reference) for probe in found]


def dice(found: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return Dice's loss of each row."""
    both = (found * mask).sum(1)
    return (1 - (2 * both + 1) / (found.sum(1) + mask.sum(1) + 1)).mean()


def jaccard(found: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return Jaccard's loss of all at once."""
    both = (mask * found).sum()
    return 1 - both / (found.sum() + mask.sum() - both)


def masked_mean(found: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return a mean over a mask, which divides by what does not learn."""
    return (found.square() * mask).sum() / mask.sum()


@pytest.mark.parametrize("make", [dice, jaccard])
def test_overlaps_of_raw_scores_are_told(make: Loss) -> None:
    """The output of a module, as it is, in the four of these steps that are looked at."""
    assert looks(make) == [(4.0, 4.0)]


@pytest.mark.parametrize(
    "make",
    [
        lambda scores, mask: dice(scores.sigmoid(), mask),
        lambda scores, mask: jaccard(scores.softmax(1), mask),
        lambda scores, mask: (1 - scores.sigmoid() / 2.0).mean(),
        masked_mean,
    ],
    ids=["sigmoid", "softmax", "a number below the line", "a mean"],
)
def test_other_quotients_are_left_alone(make: Loss) -> None:
    """Probabilities, and what is no overlap."""
    assert looks(make) == []


@pytest.mark.parametrize("make", [dice, jaccard])
def test_outputs_that_are_probabilities_are_left_alone(make: Loss) -> None:
    """They are looked at, and lie where they should."""
    assert looks(make, Probabilities) == []
