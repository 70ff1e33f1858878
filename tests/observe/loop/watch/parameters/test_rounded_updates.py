"""What is left of steps in parameters of 16 bits."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Own(torch.optim.SGD):
    """An optimizer of somebody else, that may round as it likes."""


def looks(rate: float, dtype=torch.bfloat16, kind=torch.optim.SGD, steps: int = 8) -> list[Probe]:
    """Train a layer of ones at a rate, with gradients of one, and return what was seen."""
    model = nn.Linear(8, 8, bias=False).to(dtype)
    nn.init.ones_(model.weight)
    with Recorder("x") as recorder:
        optimizer = kind(model.parameters(), lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 8, dtype=dtype)).sum().backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "rounding"]


@pytest.mark.parametrize(
    ("rate", "dtype", "still"),
    [
        (2**-10, torch.bfloat16, 1.0),  # below one, bfloat16 has steps of a 256th
        (2**-8, torch.bfloat16, 0.0),
        (2**-13, torch.float16, 1.0),
        (2**-11, torch.float16, 0.0),
    ],
)
def test_what_is_rounded_off(rate: float, dtype: torch.dtype, still: float) -> None:
    """All elements stand still where half of the step between two numbers is not reached."""
    (probe,) = looks(rate, dtype)
    assert (probe.measured, probe.reference, probe.step) == (still, torch.finfo(dtype).eps, 8)
    assert probe.label == f"SGD, {str(dtype).removeprefix('torch.')}"
    assert "test_rounded_updates.py:" in probe.source


def test_what_is_not_looked_at() -> None:
    """Parameters of float32, optimizers that are not torch's, and a few steps."""
    assert looks(1e-12, torch.float32) == []
    assert looks(2**-10, kind=Own) == []
    assert looks(2**-10, steps=4) == []
