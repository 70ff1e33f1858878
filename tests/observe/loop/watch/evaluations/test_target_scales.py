"""Targets of evaluations, and the units that a model has learned."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(
    change, *, loss=F.mse_loss, learned=lambda y: y, steps: int = 200, until: int = 200
) -> list[Probe]:
    """
    Fit a line, and evaluate it on targets that `change` makes of those of the training.

    until: the step after which there is no evaluation any more.
    """
    torch.manual_seed(0)
    inputs = torch.randn(256, 4)
    targets = inputs @ torch.tensor([1.0, -1.0, 0.5, 0.0])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with Recorder("x") as recorder:
        for step in range(steps):
            optimizer.zero_grad()
            loss(model(inputs[:128]).squeeze(1), learned(targets[:128])).backward()
            optimizer.step()
            if step % 20 == 19 and step < until:
                with torch.no_grad():
                    loss(model(inputs[128:]).squeeze(1), change(targets[128:]))
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "target scale"]


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss])
def test_other_units_are_told(loss) -> None:
    """Another mean, another deviation, or both."""
    (probe,) = found(lambda y: 10 * y + 100, loss=loss)
    assert probe.measured == pytest.approx(6.3, abs=1.5)
    assert probe.reference == pytest.approx(10, rel=0.1)
    assert "test_target_scales.py:" in probe.source


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda y: y + 10, 1),
        (lambda y: y / 10, 1),
        (lambda y: y, 0),
        (lambda y: 2 * y + 1, 0),
        (lambda y: -10 * y, 0),
        (lambda y: 100 * torch.randn_like(y), 0),
        (lambda y: torch.full_like(y, 9.0), 0),
    ],
    ids=["mean", "deviation", "same", "range", "against", "noise", "constant"],
)
def test_what_follows_and_is_far(change, count: int) -> None:
    """What follows nothing, or is of another range, is left alone."""
    assert len(found(change)) == count


def test_what_follows_little_varies_little() -> None:
    """Targets with much of what nobody knows vary more than what is predicted of them."""
    noise = 6 * torch.randn(128, generator=torch.Generator().manual_seed(1))
    assert found(lambda y: 3 * y + noise) == []


def test_a_model_that_has_just_begun_is_left_alone() -> None:
    """Its predictions hardly vary yet."""
    assert found(lambda y: 10 * y + 100, until=60) == []


def test_a_training_that_is_far_itself_says_nothing() -> None:
    """Its own targets are as far from what it predicts."""
    assert found(lambda y: y + 1000, learned=lambda y: y + 1000, steps=40) == []
