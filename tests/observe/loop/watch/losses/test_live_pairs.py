"""Losses of nothing but the distance between two outputs: how far samples stay apart."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import huber_loss, mse_loss, smooth_l1_loss

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Lose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def told(lose: Lose, steps: int = 40, rows: int = 32) -> list[Probe]:
    """Train two networks in a row; return what is told of what they agree about."""
    torch.manual_seed(0)
    one, two = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()], 1e-2)
    with Recorder("train") as recorder:
        for _ in range(steps):
            x = torch.randn(rows, 8)
            code = one(x)
            lose(two(code), code, x).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert "faults" not in recorder.trace.conditions
    names = ("agreement", "shrinking")
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe in names]


@pytest.mark.parametrize("distance", [mse_loss, smooth_l1_loss, huber_loss])
def test_both_sides_shrink(distance: Callable[..., torch.Tensor]) -> None:
    """It is told how far samples are apart at the last look, by what it was at first."""
    (probe,) = told(lambda out, code, _: 3 * distance(out, code))
    assert (probe.probe, probe.reference) == ("shrinking", 1)
    assert probe.measured < 0.7
    assert probe.step >= 3


@pytest.mark.parametrize(
    "lose",
    [
        lambda out, code, x: mse_loss(out, x),
        lambda out, code, x: mse_loss(out, code.detach()),
        lambda out, code, x: mse_loss(out, code) + mse_loss(out, x),
        lambda out, code, x: mse_loss(out, code) + out.exp().mean(),
        lambda out, code, x: mse_loss(out, x.requires_grad_()),
        lambda out, code, x: mse_loss(out[0], code[0]),
    ],
    ids=["data", "detached", "data too", "another term", "a leaf", "one sample"],
)
def test_what_does_not_only_agree(lose: Lose) -> None:
    """Data on one side, or in another term, keeps samples apart."""
    assert told(lose) == []


def test_few_samples_tell_nothing() -> None:
    """They may be near by chance."""
    assert told(lambda out, code, _: mse_loss(out, code), rows=7) == []
