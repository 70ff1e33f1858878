"""Losses of evaluations that compare a model with what it has made itself."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Coder(nn.Module):
    """Returns a code, what is made of it, and what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return all three."""
        code = self.encode(x)
        return code, self.decode(code), x


def of_input(code: torch.Tensor, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return how far from its input something is."""
    return F.mse_loss(made, x)


def of_code(code: torch.Tensor, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return how far from its code something is."""
    return F.mse_loss(code, made[:, :].detach())


def both(code: torch.Tensor, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the sum of both."""
    return of_input(code, made, x) + of_code(code, made, x)


def of_size(code: torch.Tensor, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return how far from its code something is, by another function."""
    return F.l1_loss(made, code)


def found(learned: Loss, evaluated: Loss) -> list[tuple[float, float, str]]:
    """Learn by one loss, evaluate by another one, and return what was seen."""
    model = Coder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            code, made, given = model(x)
            learned(code, made, given).backward()
            optimizer.step()
            with torch.no_grad():
                evaluated(*model(torch.randn(8, 4)))
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "own target"]
    return [(probe.measured, probe.reference, probe.label) for probe in probes]


def test_an_output_for_a_target() -> None:
    """In all evaluations, or in some."""
    assert found(of_input, of_code) == [(4, 4, "mse_loss")]
    assert found(of_input, both) == [(4, 8, "mse_loss")]


@pytest.mark.parametrize(
    ("learned", "evaluated"),
    [(of_input, of_input), (both, of_code), (of_code, of_code), (of_input, of_size)],
)
def test_losses_that_are_meant(learned: Loss, evaluated: Loss) -> None:
    """Of targets, of two outputs in the training, too, and by another function."""
    assert found(learned, evaluated) == []


def test_only_so_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are looked at."""
    monkeypatch.setattr("trainguard.observe.loop.watch.losses.own_targets._CALLS", 3)
    assert found(of_input, of_code) == [(1, 1, "mse_loss")]
