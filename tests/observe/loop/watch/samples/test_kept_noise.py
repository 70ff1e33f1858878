"""Noise that is the same in every step."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ROWS, WIDTH = 32, 6


class Noisy(nn.Module):
    """Multiplies what it has learned by noise."""

    def __init__(self, draw: Callable[[], torch.Tensor], once: bool) -> None:
        super().__init__()
        self.first, self.last, self.draw = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1), draw
        self.kept = draw() if once else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers (N, 1)."""
        noise = self.draw() if self.kept is None else self.kept
        return self.last(self.first(x).exp() * noise)


def found(
    draw: Callable[[], torch.Tensor], *, once: bool = True, batches: int = 20
) -> list[tuple[str, float]]:
    """Train with noise, and with so many batches in turns; return what is told."""
    torch.manual_seed(0)
    model = Noisy(draw, once)
    inputs = [torch.randn(ROWS, 4) for _ in range(batches)]
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(20):
            optimizer.zero_grad()
            model(inputs[step % batches]).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe.startswith("kept ")]
    return [(probe.probe, probe.measured) for probe in probes]


def normal() -> torch.Tensor:
    """Return noise for each sample."""
    return torch.randn(ROWS, WIDTH)


def mask(rate: float = 0.5) -> torch.Tensor:
    """Return what dropout multiplies by."""
    return (torch.rand(ROWS * WIDTH).view(ROWS, WIDTH) > rate).float() / (1 - rate)


@pytest.mark.parametrize(("draw", "kind"), [(normal, "kept noise"), (mask, "kept mask")])
def test_noise_that_is_drawn_once(draw: Callable, kind: str) -> None:
    """Told by what it looks like; not where it is drawn again."""
    assert found(draw) == [(kind, 5.0)]
    assert found(draw, once=False) == []


def test_one_batch_again_and_again() -> None:
    """With the same inputs the same noise is a choice."""
    assert found(normal, batches=1) == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.ones(ROWS, WIDTH),
        lambda: torch.rand(ROWS, WIDTH).round(),
        lambda: torch.randn(ROWS, WIDTH).mul(2),
        lambda: torch.rand(ROWS, WIDTH),
        lambda: torch.randn(ROWS, WIDTH).sign(),
        lambda: torch.linspace(-1.7, 1.7, ROWS * WIDTH).view(ROWS, WIDTH),
    ],
    ids=["ones", "connections", "wide", "uniform", "signs", "places"],
)
def test_other_constants(draw: Callable) -> None:
    """What has other moments may be anything."""
    assert found(draw) == []
