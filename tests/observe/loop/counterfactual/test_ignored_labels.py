"""Ignored labels edited: whether what a mask leaves out is learned."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


def ask(loss_of, constant=-1.0) -> list[WhatIf]:
    """Record a training of three tasks, and return what it was asked about missing labels."""
    torch.manual_seed(0)
    points = torch.randn(64, 6)
    labels, known = points @ torch.randn(6, 3), torch.rand(64, 3) > 0.4
    labels = labels.where(known, torch.tensor(constant))
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(points, labels, known), 16, shuffle=True)
        for inputs, wanted, mask in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), wanted, mask).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "ignored labels edited"]


def masked(scores, labels, mask) -> torch.Tensor:
    """Return the mean over the labels that there are."""
    return (F.mse_loss(scores, labels, reduction="none") * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("loss_of", "changes"),
    [
        (masked, (0.0, 1.0, 1.0)),
        (lambda scores, labels, mask: F.l1_loss(scores[mask], labels[mask]), (0.0, 1.0, 1.0)),
        (lambda scores, labels, mask: masked(scores, labels, ~mask), (1.0, 0.0, 1.0)),
        (lambda scores, labels, mask: F.mse_loss(scores, labels), (1.0, 1.0, 1.0)),
    ],
)
def test_labels_that_a_mask_leaves_out(loss_of, changes) -> None:
    """Masked in two ways, masked upside down, and not at all."""
    event = ask(loss_of)[0]
    assert (event.outcome, event.measured, *event.numbers) == ("answered", *changes)
    assert event.label.endswith("of 48 labels, which a mask leaves out")
    one = re.match(r"with another label \[\d+, \d\], the loss is \S+ instead of", event.smallest)
    assert (one is not None) == event.measured


def sentinel(scores, labels, mask) -> torch.Tensor:
    """Return the mean over the labels that there are, found without the mask."""
    there = labels != -1
    return F.mse_loss(scores[there], labels[there])


def missing(scores, labels, mask) -> torch.Tensor:
    """Return the mean over the labels that are numbers."""
    there = ~torch.isnan(labels.flatten())
    return F.mse_loss(scores.flatten()[there], labels.flatten()[there])


@pytest.mark.parametrize(
    ("loss_of", "constant", "reason"),
    [
        (sentinel, -1.0, "the step itself looks at the labels (ne)"),
        (missing, float("nan"), "the step itself looks at the labels (isnan)"),
        (
            lambda scores, labels, mask: scores.square().mean(),
            0.0,
            "the step depends on none of them",
        ),
    ],
)
def test_an_edit_that_says_nothing(loss_of, constant, reason) -> None:
    """The step finds out by the constant, or has no use for labels."""
    assert {(event.outcome, event.reason) for event in ask(loss_of, constant)} == {("void", reason)}


def test_a_constant_that_may_be_a_label() -> None:
    """Zero where another label says no: a hurdle, and not a mask."""
    event = ask(lambda scores, labels, mask: F.mse_loss(scores, labels), 0.0)[0]
    assert (event.outcome, event.measured, event.numbers) == ("answered", 1.0, (1.0, 0.0))
