"""Targets that a model makes of its own outputs."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Model = Callable[[torch.Tensor], torch.Tensor]


def looks(make: Callable[[Model, Model, torch.Tensor, torch.Tensor], torch.Tensor]) -> list[float]:
    """Make steps with losses of a model, its copy, states and later ones; return what was seen."""
    model = nn.Linear(3, 4)
    slow = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            make(model, slow, torch.randn(8, 3), torch.randn(8, 3)).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "live target"]
    return [number for probe in found for number in (probe.measured, probe.reference)]


def paid() -> torch.Tensor:
    """Return rewards of eight states."""
    return torch.randn(8)


def square(apart: torch.Tensor) -> torch.Tensor:
    """Return half of the sum of squares, as products."""
    return 0.5 * (apart * apart).sum()


def within(output: torch.Tensor) -> torch.Tensor:
    """Return a distance between columns of one pass."""
    return F.mse_loss(output[:, 0], paid() + 0.9 * output[:, 1])


ENDS = torch.tensor([0.0, 1.0] * 4)
LIVE = {
    "mse": lambda q, _, s, n: F.mse_loss(q(s)[:, 0], paid() + 0.9 * q(n)[:, 0]),
    "the other way": lambda q, _, s, n: F.mse_loss(paid() + 0.9 * q(n)[:, 0], q(s)[:, 0]),
    "huber": lambda q, _, s, n: F.huber_loss(
        q(s).gather(1, torch.ones(8, 1).long()).squeeze(1),
        paid() + 0.99 * (1 - ENDS) * q(n).max(1).values,
    ),
    "advantage": lambda v, _, s, n: (paid() + 0.9 * v(n)[:, 1] - v(s)[:, 1]).pow(2).mean(),
    "product": lambda v, _, s, n: square(v(s).amax(1) - (0.9 * v(n).amax(1) + paid())),
}
CONSTANT = {
    "detached": lambda q, _, s, n: F.mse_loss(q(s)[:, 0], paid() + 0.9 * q(n).detach()[:, 0]),
    "copy": lambda q, slow, s, n: F.mse_loss(q(s)[:, 0], paid() + 0.9 * slow(n)[:, 0]),
    "nothing added": lambda q, _, s, n: F.mse_loss(q(s), 0.9 * q(n)),
    "same pass": lambda q, _, s, n: within(q(s)),
    "a small share": lambda q, _, s, n: F.mse_loss(q(s)[:, 0], paid() + 0.01 * q(n)[:, 0]),
    "a whole": lambda q, _, s, n: F.mse_loss(q(s), torch.randn(8, 4) + q(n)),
    "of numbers": lambda q, _, s, __: torch.ops.aten.mul.Scalar(q(s).mean(), 2.0),
    "the other sign": lambda q, _, s, n: F.mse_loss(q(s)[:, 0], paid() - 0.9 * q(n)[:, 0]),
}


class Squeezed(nn.Module):
    """A model that returns one number for each row: its last operation is a squeeze."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return what states are worth."""
        return self.layer(states).squeeze(-1)


@pytest.mark.parametrize("written", [F.mse_loss, lambda a, b: (a - b).pow(2).mean()])
def test_a_model_whose_output_is_squeezed(written) -> None:
    """It ends where the model does."""
    model = Squeezed()
    assert looks(lambda _, __, s, n: written(model(s), paid() + 0.9 * model(n))) == [3.0, 3.0]


@pytest.mark.parametrize("written", LIVE)
def test_targets_that_learn(written: str) -> None:
    """However the distance is written, and whichever side comes first."""
    assert looks(LIVE[written]) == [3.0, 3.0]


@pytest.mark.parametrize("written", CONSTANT)
def test_targets_that_do_not(written: str) -> None:
    """Detached, of a copy, or no target of this kind."""
    assert looks(CONSTANT[written]) == []
