"""Accumulation: what one batch weighs its parts by, and where that cannot be told."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.accumulation import (
    BatchAccumulated,
    _are_shares,
    _count_parts,
)
from trainguard.observe.loop.recorder import Recorder

PASSES = 4


@pytest.fixture(autouse=True)
def _nothing_else_is_asked(monkeypatch) -> None:
    """Spare the time of other questions."""
    monkeypatch.setattr(asking, "_questions", lambda _: [BatchAccumulated()])


def ask(
    measure, passes: int = PASSES, ahead: bool = False, in_order: bool = False
) -> WhatIf | None:
    """Record steps of several passes with a loss, and return what they say of a batch."""
    torch.manual_seed(0)
    points = torch.randn(256, 6)
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        batches = iter(DataLoader(TensorDataset(points, points.sum(1)), 8, shuffle=not in_order))
        batch = next(batches)
        for place in range(6 * passes):
            inputs, target = batch
            batch = next(batches) if ahead else batch
            measure(net(inputs)[:, 0], target).backward()
            if place % passes == passes - 1:
                optimizer.step()
                optimizer.zero_grad()
            batch = batch if ahead else next(batches)
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return next((event for event in asked if event.question == "batch accumulated"), None)


def weigh_by_target(outputs, target):
    """Return a mean whose weights are those of the targets, of four passes."""
    return F.mse_loss(outputs, target, reduction="none") @ target.abs() / target.abs().sum() / 4


def test_what_a_batch_weighs_its_parts_by() -> None:
    """A mean over samples weighs them alike, whatever dropout there is; one with weights not."""
    even = ask(lambda a, b: F.mse_loss(a, b) / PASSES)
    assert even is not None
    assert even.measured < 1e-4
    assert (even.reference, even.numbers) == (PASSES, (0.25, 1, 1, 1, 1))
    uneven = ask(weigh_by_target)
    assert uneven is not None
    assert uneven.measured > 0.1
    assert sum(uneven.numbers[1:]) == pytest.approx(4, rel=1e-3)
    assert max(uneven.numbers[1:]) > 1.2


@pytest.mark.parametrize("within", [False, True])
def test_gradients_that_were_there_before(within) -> None:
    """What is left in an optimizer of an earlier run, or waits in one of this, is of no window."""
    kept = []

    def add_left() -> None:
        """Make an optimizer whose parameter has a gradient, large against that of the run."""
        left = nn.Linear(1, 1)
        left.weight.grad = torch.full((1, 1), 1e4)
        kept.append(torch.optim.SGD(left.parameters(), lr=0.1))

    def measure(outputs, target):
        """Return a mean; begin with an optimizer that waits."""
        if within and not kept:
            add_left()
        return F.mse_loss(outputs, target) / PASSES

    if not within:
        add_left()
    even = ask(measure)
    assert even is not None
    assert (even.outcome, even.measured < 1e-4) == ("answered", True)


def test_batches_that_are_fetched_ahead() -> None:
    """What was fetched before a step is no part of the window after it."""
    answer = ask(weigh_by_target, ahead=True)
    assert answer is not None
    assert answer.reason == "the parts of a batch do not come in turn"


@pytest.mark.parametrize("by", [1.0, 0.25])
def test_a_sum(by) -> None:
    """One batch has as many times the gradient as there are parts; the factor is told."""
    answer = ask(lambda a, b: F.mse_loss(a, b, reduction="sum") * by)
    assert answer is not None
    # Gradients are sums in float32, which processors add up in orders of their own.
    assert answer.numbers == pytest.approx((by, 4, 4, 4, 4), rel=1e-5)


@pytest.mark.parametrize(
    ("measure", "why"),
    [
        (lambda a, b: F.cross_entropy(torch.outer(a, b), torch.arange(len(a))), "each other"),
        (lambda a, b: (a - b * torch.rand(len(b))).square().mean(), "random numbers"),
        (lambda a, b: F.mse_loss(a, b).pow(2), ""),
    ],
)
def test_what_cannot_be_told(measure, why) -> None:
    """Samples that depend on each other, and random numbers, make it void."""
    answer = ask(measure)
    assert answer is not None
    assert answer.outcome == "void"
    assert why in answer.reason


def test_what_is_not_asked() -> None:
    """Steps of one pass, batches that have no parts for so many passes, and those in order."""
    assert ask(F.mse_loss, passes=1) is None
    assert ask(F.mse_loss, passes=3) is None
    assert ask(F.mse_loss, in_order=True) is None


def test_parts_and_weights() -> None:
    """Parts have two rows where they can; weights are those of means or of sums."""
    assert [_count_parts(*each) for each in ((8, 4), (4, 4), (2, 4), (8, 3))] == [4, 2, 2, 1]
    assert _are_shares([0.5, 1.5])
    assert _are_shares([2.0, 2.0])
    assert not _are_shares([0.9, 1.05])
