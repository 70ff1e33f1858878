"""What is chosen of samples that are compared with each other, and whether each chooses itself."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

COUNT = 12
EYE = torch.eye(COUNT, dtype=torch.bool)
PARTNER = torch.arange(COUNT).roll(COUNT // 2)
Codes = Callable[[torch.Tensor], torch.Tensor]


def choices(loss_of: Codes, steps: int = 6) -> list[tuple[str, float, float]]:
    """Record a training whose loss is one of codes; return what each chooses, and how often."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(steps):
            loss = loss_of(net(torch.randn(COUNT, 6)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "own choice"]
    return [(p.label, p.measured, p.reference) for p in probes]


def scores(codes: torch.Tensor) -> torch.Tensor:
    """Return cosines of all pairs."""
    unit = F.normalize(codes, dim=1)
    return unit @ unit.t()


def squares(codes: torch.Tensor) -> torch.Tensor:
    """Return squared distances of all pairs, written out."""
    return (codes[:, None] - codes[None]).pow(2).sum(-1)


def expanded(codes: torch.Tensor) -> torch.Tensor:
    """Return them as sums of squares less the products."""
    own = codes.pow(2).sum(1)
    return own[:, None] + own[None] - 2 * codes @ codes.T


def hinge(nearest: torch.Tensor) -> torch.Tensor:
    """Push away what is nearest."""
    return F.relu(nearest + 0.3).mean()


OWN = {
    "max": ("greatest", lambda c: hinge(scores(c).max(1).values)),
    "max of columns": ("greatest", lambda c: hinge(scores(c).max(0).values)),
    "but the partner": (
        "greatest",
        lambda c: hinge(scores(c).scatter(1, PARTNER[:, None], -2.0).max(1).values),
    ),
    "topk": ("first", lambda c: hinge(scores(c).topk(1).values)),
    "min of cdist": ("least", lambda c: F.relu(1 - torch.cdist(c, c).min(1).values).mean()),
    "min of squares": ("least", lambda c: F.relu(1 - squares(c).min(1).values).mean()),
    "min of a sum": ("least", lambda c: F.relu(1 - expanded(c).min(1).values).mean()),
}
OTHERS = {
    "masked": lambda c: hinge(scores(c).masked_fill(EYE, -2).max(1).values),
    "farthest": lambda c: torch.cdist(c, c).max(1).values.mean(),
    "several": lambda c: hinge(scores(c).topk(3).values[:, 1:]),
    "taken off": lambda c: ((s := scores(c)) - s.max(1, keepdim=True).values).exp().sum(1).mean(),
    "two halves": lambda c: hinge((c[:6] @ c[6:].T).max(1).values),
    "two views": lambda c: hinge(
        (F.normalize(c, dim=1) @ F.normalize(c + 1e-3 * torch.randn(COUNT, 4), dim=1).T)
        .max(1)
        .values
    ),
    "a square": lambda c: hinge(((c * c).sum(1, keepdim=True) * EYE).max(1).values),
    "another matrix": lambda c: hinge((c @ torch.ones(4, COUNT)).max(1).values),
}


@pytest.mark.parametrize("name", OWN)
def test_samples_that_choose_themselves(name: str) -> None:
    """Whichever way they are compared, the nearest is the sample itself."""
    label, loss_of = OWN[name]
    assert choices(loss_of) == [(label, 4.0, 4.0)]


@pytest.mark.parametrize("name", OTHERS)
def test_samples_that_choose_others(name: str) -> None:
    """The diagonal is left out, is not chosen, or is no pair of a sample with itself."""
    assert choices(OTHERS[name]) == []
