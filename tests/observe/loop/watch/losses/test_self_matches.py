"""Tables of scores of all pairs of a batch, and whether their diagonal is left out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.loop import Probe
from trainguard.observe.loop.recorder import Recorder

COUNT = 12
PARTNER = torch.arange(COUNT).roll(1)


def probes(loss_of, before: int = 0, kind: str = "self") -> list[Probe]:
    """Record a training on codes of length 1, after some steps of another one."""
    torch.manual_seed(0)
    net, other = nn.Linear(6, 4), nn.Linear(6, 1)
    with Recorder("x") as recorder:
        for steps, model in ((before, other), (4, net)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(steps):
                optimizer.zero_grad()
                out = model(torch.randn(COUNT, 6))
                loss = loss_of(F.normalize(out, dim=1)) if model is net else out.square().mean()
                loss.backward()
                optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == kind]


@pytest.mark.parametrize("before", [0, 20])
def test_a_diagonal_that_is_kept(before: int) -> None:
    """It is told in each of its calls, however late they come."""
    (probe,) = probes(lambda codes: F.cross_entropy(codes @ codes.T / 0.1, PARTNER), before)
    assert (probe.measured, probe.reference) == (4.0, 4.0)


EYE = torch.eye(COUNT, dtype=torch.bool)
SOUND = {
    "masked": lambda c: F.cross_entropy((c @ c.T / 0.1).masked_fill(EYE, float("-inf")), PARTNER),
    "zeroed": lambda c: F.cross_entropy((c @ c.T / 0.1) * ~EYE, PARTNER),
    "target": lambda c: F.cross_entropy(c @ c.T / 0.1, torch.arange(COUNT)),
    "lengths": lambda c: F.cross_entropy(
        (w := c * torch.linspace(0.1, 2, COUNT)[:, None]) @ w.T, PARTNER
    ),
    "constant": lambda c: F.cross_entropy(0 * (c @ c.T), PARTNER),
    "probabilities": lambda c: F.cross_entropy(c @ c.T / 0.1, torch.eye(COUNT).roll(1, 0)),
}


@pytest.mark.parametrize(
    ("right", "count"), [(torch.arange(COUNT), 1), (PARTNER, 0), (torch.zeros(COUNT).long(), 0)]
)
def test_a_view_that_is_the_sample_itself(right, count) -> None:
    """The scores at the targets are told where all are those of a vector with itself."""
    found = probes(lambda codes: F.cross_entropy(codes @ codes.T / 0.1, right), kind="view")
    assert len(found) == count


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound(name: str) -> None:
    """Masked diagonals, those that are the target, and scores of any length are no mistake."""
    assert probes(SOUND[name]) == []
