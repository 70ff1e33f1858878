"""Smoothed labels, and what their rows add up to."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

CLASSES = 5


def looks(make, loss: str = "torch", classes: int = CLASSES) -> list[tuple[float, int, str]]:
    """Make four steps with targets that are made of labels, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Linear(3, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            scores = model(torch.randn(8, 3))
            targets = make(F.one_hot(torch.randint(classes, (8,)), classes).float())
            if loss == "torch":
                value = F.cross_entropy(scores, targets)
            elif loss == "divergence":
                value = F.kl_div(scores.log_softmax(1), targets, reduction="batchmean")
            else:
                value = -(targets * scores.log_softmax(1)).sum(1).mean()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert "target sum" in str(recorder.trace.conditions["looked"]) or classes < 3
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "target sum"]
    return [(round(probe.measured, 3), probe.step, probe.label) for probe in found]


@SHAPES
@pytest.mark.parametrize("loss", ["torch", "divergence", "by hand"])
def test_rows_that_are_more_than_one_are_told(loss: str) -> None:
    """0.9 + 5 * 0.1, at three of the steps that are looked at."""
    assert looks(lambda hot: hot * 0.9 + 0.1, loss) == [(1.4, 3, "(8,5)")]


@SHAPES
def test_rows_that_are_less_than_one_are_told() -> None:
    """What the class gives up is given to nobody."""
    assert looks(lambda hot: hot * 0.8 + 0.02) == [(0.9, 3, "(8,5)")]


@SHAPES
@pytest.mark.parametrize(
    "make",
    [
        lambda hot: hot * 0.9 + 0.1 / CLASSES,
        lambda hot: hot,
        lambda hot: 2.0 * hot,
        lambda hot: 2.0 * torch.rand_like(hot).softmax(1),
        lambda hot: (hot * 0.9 + 0.1) * torch.rand(len(hot), 1),
        lambda hot: hot * 0.9 + 0.102 / CLASSES,
    ],
    ids=["one", "hard", "weighed", "a teacher", "weights of samples", "rounded"],
)
def test_others_are_left_alone(make) -> None:
    """Sums of one, hard labels, what a teacher says times a weight, and weights of samples."""
    assert looks(make) == []


def test_two_labels_of_their_own() -> None:
    """Of two classes, each may hold by itself."""
    assert looks(lambda hot: hot * 0.9 + 0.1, classes=2) == []
