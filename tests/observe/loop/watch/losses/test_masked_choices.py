"""What is least or greatest of tables that are multiplied with masks."""

import pytest
import torch
from torch import nn

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.masked_choices import MaskedChoices

SAME = torch.arange(8)[:, None] % 3 == torch.arange(8) % 3


def choices(choose, steps: int = 4, parts: int = 1) -> tuple[list[Probe], bool]:
    """Train on a choice of the distances of eight codes; return what is told, and whether asked."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    with Recorder("x", probe=False) as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            for _ in range(parts):
                codes = net(torch.randn(8, 6))
                distances = (codes[:, None] - codes).square().sum(2) + 0.1
                (codes.square().mean() + choose(distances, step)).backward()
            optimizer.step()
        looked = "choice" in recorder.watcher(MaskedChoices).looked
    assert "faults" not in recorder.trace.conditions
    told = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "choice"]
    return told, looked


@pytest.mark.parametrize(
    ("choose", "label"),
    [
        (lambda d, _: (d * ~SAME).min(1).values.mean(), "the least entries of (N, M)"),
        (lambda d, _: (SAME.float() * d).min(-1)[0].mean(), "the least entries of (N, M)"),
        (lambda d, _: (d * SAME).min(0, keepdim=True).values.sum(), "the least entries of (M, N)"),
        (
            lambda d, _: (-d * SAME.long()).max(dim=1).values.mean(),
            "the greatest entries of (N, M)",
        ),
    ],
)
def test_masked_entries_alone(choose, label) -> None:
    """Whatever the mask is made of, and wherever it stands; in three looks or more."""
    (probe,), _ = choices(choose)
    assert (probe.label, probe.measured, probe.reference) == (label, 3, 3)
    assert "test_masked_choices.py" in probe.source
    assert choices(choose, steps=2) == ([], True)


@pytest.mark.parametrize(
    "choose",
    [
        lambda d, _: (d * SAME).max(1).values.mean(),
        lambda d, step: ((d if step else -d) * SAME).min(1).values.mean(),
        lambda d, _: ((d - d.mean().detach()) * SAME).min(1).values.mean(),
    ],
)
def test_entries_that_the_mask_leaves(choose) -> None:
    """In all rows, or in some, or in one look."""
    assert choices(choose) == ([], True)


def test_tables_apart() -> None:
    """A table that is well hides none of the same shape that is not."""

    def choose(distances: torch.Tensor, _: int) -> torch.Tensor:
        """Return the least of a table above nothing, and of one that is mostly below."""
        well, ill = (distances - 9) * SAME, distances * SAME
        return ill.min(1).values.mean() + well.min(1).values.mean()

    (probe,), _ = choices(choose)
    assert (probe.label, probe.measured) == ("the least entries of (N, M)", 3)


def test_parts_of_a_step() -> None:
    """Three micro-batches of one step are one look."""
    assert choices(lambda d, _: (d * ~SAME).min(1)[0].mean(), steps=2, parts=3) == ([], True)


@pytest.mark.parametrize(
    "choose",
    [
        lambda d, _: (d * 0.5).min(1).values.mean(),
        lambda d, _: (d * d.detach()).min(1).values.mean(),
        lambda d, _: (d * torch.zeros(8, 8)).min(1).values.mean(),
        lambda d, _: (d * torch.ones(8, 8)).min(1).values.mean(),
        lambda d, _: (d * SAME).min(),
        lambda d, _: d.masked_fill(SAME, 9.0).min(1).values.mean(),
        lambda d, _: (d[:3] * SAME[:3]).min(1).values.mean(),
        lambda d, _: d.min(1).values.mean(),
    ],
)
def test_nothing_to_judge(choose) -> None:
    """Weights are no masks; all or nothing masked, or few rows, tell nothing."""
    assert choices(choose) == ([], False)


@SHAPES
def test_packed_places_of_a_mask_that_is_not() -> None:
    """The mask is at hand and the chosen places are not: the watcher stays on, and says nothing."""

    def choose(distances: torch.Tensor, _: int) -> torch.Tensor:
        """Return the least entries of a masked table, whose places are packed."""
        table = distances * ~SAME
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return table.min(1).values.mean()

    assert choices(choose) == ([], False)
