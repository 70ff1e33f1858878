"""What optimizers divide by: the sizes of gradients, or their epsilon."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def looks(make, steps: int = 8, width: int = 16) -> list[Probe]:
    """Train a layer with what `make` returns for its parameters, and return what was seen."""
    model = nn.Linear(width, 8)
    with Recorder("x") as recorder:
        optimizer = make(model)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, width)).square().mean().backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "epsilon"]


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RAdam", "RMSprop"])
def test_all_that_adapt(kind: str) -> None:
    """The share of elements below the epsilon is that of what the step divides by."""
    (probe,) = looks(lambda model: getattr(torch.optim, kind)(model.parameters(), eps=1e3))
    assert (probe.measured, probe.reference, probe.step) == (1.0, 1e3, 8)
    assert probe.label == f"{kind}, group 0"
    assert looks(lambda model: getattr(torch.optim, kind)(model.parameters(), eps=1e-8)) == []


def test_groups_have_epsilons_of_their_own() -> None:
    """A group of a few elements tells nothing, whatever its epsilon."""
    (probe,) = looks(
        lambda model: torch.optim.Adam(
            [{"params": [model.weight], "eps": 1e3}, {"params": [model.bias], "eps": 1e3}],
            amsgrad=True,
        )
    )
    assert (probe.label, probe.measured) == ("Adam, group 0", 1.0)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), 8),
        (lambda model: torch.optim.Adam(model.parameters()), 4),
        (lambda model: torch.optim.Adam(model.parameters(), eps=0.0), 8),
    ],
    ids=["none", "short", "zero"],
)
def test_nothing_to_see(make, steps: int) -> None:
    """No epsilon, none above zero, or too few steps."""
    assert looks(make, steps) == []
