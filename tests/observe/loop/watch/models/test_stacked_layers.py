"""Two linear layers in a row, in graphs of several kinds."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Turned(nn.Module):
    """Multiply by two matrices that are written the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(*s)) for s in ((6, 20), (20, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return x @ self.up @ self.down


class Shared(nn.Module):
    """Read what a wide layer makes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 20), nn.Linear(20, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return both."""
        wide = self.up(x)
        return wide + self.down(wide)


def stacks(model: nn.Module, *shape: int, steps: int = 3) -> list[Probe]:
    """Train a model for a few steps, and return what was seen."""
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(*shape)).square().mean().backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "stacked"]


def row(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths."""
    pairs = pairwise(widths)
    return nn.Sequential(*(nn.Linear(before, after) for before, after in pairs))


@pytest.mark.parametrize(
    ("model", "shape"),
    [(row(6, 20, 3), (4, 6)), (row(6, 20, 3), (4, 5, 6)), (Turned(), (4, 6))],
    ids=["plain", "sequence", "turned"],
)
def test_what_is_wider_between_is_found(model: nn.Module, shape: tuple[int, ...]) -> None:
    """With the widths between and around, and the names of both."""
    (probe,) = stacks(model, *shape)
    assert (probe.measured, probe.reference, probe.step) == (20.0, 6.0, 3)
    assert probe.label.count("weight") == 2 or "up" in probe.label


@pytest.mark.parametrize(
    "model",
    [
        row(6, 2, 6),
        row(6, 6, 6),
        row(6, 20, 20),
        Shared(),
        nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)),
        nn.Sequential(nn.Linear(6, 20), nn.LayerNorm(20), nn.Linear(20, 3)),
        nn.Sequential(nn.Linear(6, 20), nn.Unflatten(1, (4, 5)), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(6, 20).requires_grad_(False), nn.Linear(20, 3)),
    ],
    ids=["narrow", "same", "once", "shared", "relu", "norm", "viewed", "frozen"],
)
def test_what_is_meant_is_not(model: nn.Module) -> None:
    """Narrow codes, what several read, and what is not linear, or does not learn."""
    assert stacks(model, 4, 6) == []


def test_parts_that_learn_in_turns_are_seen_in_their_own_turns() -> None:
    """One of two models has two layers in a row, and neither is in the graph of the other."""
    models = row(6, 20, 3), nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    with Recorder("x") as recorder:
        optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
    (probe,) = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "stacked"]
    assert probe.step == 2
    assert "faults" not in recorder.trace.conditions


def test_what_is_separated_once_is_not_found() -> None:
    """A model that leaves its activation out now and then."""
    with Recorder("x") as recorder:
        first, second = nn.Linear(6, 20), nn.Linear(20, 3)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
        for step in range(3):
            optimizer.zero_grad()
            wide = first(torch.randn(4, 6))
            second(wide.relu() if step == 1 else wide).square().mean().backward()
            optimizer.step()
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "stacked"]


def test_one_look_is_none() -> None:
    """A single step says nothing of the next."""
    assert stacks(row(6, 20, 3), 4, 6, steps=1) == []
