"""What is seen of losses that are divided by a constant before their backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(divide: Callable[[torch.Tensor, int], torch.Tensor]) -> list[tuple[float, float]]:
    """Train for some steps with losses that are divided in some way; return what was found."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for number in range(12):
            divide(model(torch.randn(8, 4)).square().mean(), number).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    probes = (e for e in recorder.trace if isinstance(e, Probe) and e.probe == "divided loss")
    return [(probe.measured, probe.reference) for probe in probes]


@pytest.mark.parametrize(
    ("divide", "divisor"),
    [
        (lambda loss, _: loss / 4, 4.0),
        (lambda loss, _: 0.25 * loss, 4.0),
        (lambda loss, _: loss / torch.tensor(49.0), 49.0),
    ],
    ids=["quotient", "product", "tensor"],
)
def test_the_one_divisor_is_told(divide, divisor: float) -> None:
    """Whichever way it is written."""
    assert found(divide) == [(divisor, 12.0)]


@pytest.mark.parametrize(
    "divide",
    [
        lambda loss, _: loss,
        lambda loss, _: 4 * loss,
        lambda loss, number: loss / (2 + number % 2),
        lambda loss, _: loss / loss.detach().clone().requires_grad_(),
        lambda loss, _: loss + loss / 4,
    ],
    ids=["not at all", "larger", "by several", "by what learns", "in a sum"],
)
def test_other_losses_say_nothing(divide) -> None:
    """Nor do those that are only divided at times."""
    assert found(divide) == []
