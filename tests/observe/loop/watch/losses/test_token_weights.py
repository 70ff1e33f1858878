"""What a target weighs in each of several micro-batches."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def own_mean(scores: torch.Tensor, targets: torch.Tensor, way: str) -> torch.Tensor:
    """Return the mean over the targets that are not ignored, taken in a way of one's own."""
    each = F.cross_entropy(scores, targets, reduction="none")
    kept = targets != -100
    if way == "picked":
        return each[kept].mean()
    return (each * kept).sum() / kept.sum() if way == "masked" else each.sum() / kept.sum()


def looks(lengths: tuple[int, ...], way: str) -> list[tuple[float, float]]:
    """Make four steps of micro-batches with so many targets each, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            for kept in lengths:
                size = kept if way == "all" else 12
                targets = torch.randint(5, (size,))
                targets[kept:] = -100
                scores = model(torch.randn(size, 3))
                if way == "sums":
                    loss = F.cross_entropy(scores, targets, reduction="sum") / sum(lengths)
                elif way in ("each", "picked", "masked"):
                    loss = own_mean(scores, targets, way) / len(lengths)
                elif way == "weighed":
                    loss = F.cross_entropy(scores, targets) * (kept / sum(lengths))
                else:
                    loss = F.cross_entropy(scores, targets) / len(lengths)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "token weight"]
    return [(probe.measured, probe.step) for probe in found]


@pytest.mark.parametrize("way", ["means", "each", "picked", "masked"])
def test_uneven_micro_batches_are_told(way: str) -> None:
    """A target among two weighs five times as much as one among ten, whoever takes the mean."""
    ((ratio, steps),) = looks((10, 2, 6), way)
    assert ratio == pytest.approx(5.0)
    assert steps == 4


@pytest.mark.parametrize(
    ("lengths", "way"),
    [((10, 2), "sums"), ((10, 10), "means"), ((10, 2), "all"), ((10,), "means")],
)
def test_even_ones_are_left_alone(lengths: tuple[int, ...], way: str) -> None:
    """Sums over all of them, even numbers, targets that are all learned, and single batches."""
    assert looks(lengths, way) == []


def test_means_that_are_weighed_are_alike() -> None:
    """But for what 32 bits round."""
    assert all(ratio == pytest.approx(1.0) for ratio, _ in looks((10, 2), "weighed"))
