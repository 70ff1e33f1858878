"""Evaluations whose losses have the terms of the training."""

from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.loop import Evaluation
from trainguard.observe.loop.recorder import Recorder

ROWS = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
WORTH = ROWS.sum(1, keepdim=True)


def terms(model: nn.Module, rows: slice, reduction: str = "mean") -> tuple[torch.Tensor, ...]:
    """Return two losses of some rows."""
    made, worth = model(ROWS[rows]), WORTH[rows]
    return tuple(f(made, worth, reduction=reduction) for f in (F.mse_loss, F.l1_loss))


def evaluate(
    loss_of, *, reduction: str = "mean", cut: tuple[int, ...] = (8, 8, 4)
) -> tuple[Evaluation, list[float]]:
    """Train for four steps, and evaluate in batches; return that, and the losses of each batch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses: list[float] = []
    with Recorder("x") as recorder:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(*terms(model, slice(0, 10), reduction), step).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            begin = 0
            for size in cut:
                own = terms(model, slice(begin, begin + size), reduction)
                losses.append(sum(float(one) for one in own))
                begin += size
    assert "faults" not in recorder.trace.conditions
    (seen,) = [event for event in recorder.trace if isinstance(event, Evaluation)]
    return seen, losses


def test_terms_are_added_up_as_they_are_learned() -> None:
    """Over passes, and over samples; the largest factor counts as one."""
    seen, _ = evaluate(lambda one, other, _: (one + 0.5 * other) / 4)
    plain, sums = evaluate(lambda one, other, _: (one + other) / 4)
    assert seen.mixed_by == pytest.approx(0.25)
    assert plain.mixed == pytest.approx(sum(sums) / 3, rel=1e-5)
    weights = [size * value for size, value in zip((8, 8, 4), sums, strict=True)]
    assert plain.mixed_weighted == pytest.approx(sum(weights) / 20, rel=1e-5)
    assert (plain.mixed_samples, plain.count, plain.passes) == (20, 6, 3)
    assert seen.mixed < plain.mixed


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda one, other, step: one,
        lambda one, other, step: one + step * other,  # a warm-up
        lambda one, other, step: one + (1 + step) * other,
        lambda one, other, step: one + other + (other * one),
        lambda one, other, step: one + other + 1.0,
        lambda one, other, step: one * other,
    ],
    ids=["one", "warm-up", "change", "product beside", "constant", "product"],
)
def test_losses_that_are_no_sum_of_what_is_called(loss_of) -> None:
    """Of them nothing is known."""
    seen, _ = evaluate(loss_of)
    assert isnan(seen.mixed)
    assert seen.count == 6


@pytest.mark.parametrize("several", [True, False])
def test_an_evaluation_of_one_term(several: bool) -> None:
    """It has fewer than the training, or as many, which is known without."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(model(ROWS), WORTH)
            (loss + F.l1_loss(model(ROWS), WORTH) if several else loss).backward()
            optimizer.step()
        with torch.no_grad():
            for begin in (0, 8):
                F.mse_loss(model(ROWS[begin : begin + 8]), WORTH[begin : begin + 8])
    (seen,) = [event for event in recorder.trace if isinstance(event, Evaluation)]
    assert isnan(seen.mixed)
    assert seen.count == 2
