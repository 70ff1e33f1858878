"""Modules that return the logarithm of their determinant."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.log_determinants import _compare


class Coupling(nn.Module):
    """Scales the second half of each row by the first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows (N, 4), and their log-determinants (N,)."""
        kept, changed = x.chunk(2, dim=1)
        scale = self.net(kept)
        return torch.cat([changed * scale.exp(), kept], dim=1), scale.sum(1)


class Flow(nn.Module):
    """Two layers, and some number made of what they return."""

    def __init__(self, join: Callable = torch.add) -> None:
        super().__init__()
        self.first, self.second, self.join = Coupling(), Coupling(), join

    def forward(self, x: torch.Tensor) -> object:
        """Return rows (N, 4), and a number for each."""
        x, one = self.first(x)
        x, other = self.second(x)
        log_det = self.join(one, other)
        return x, log_det


class Unnamed(Flow):
    """The same, with another name."""

    def forward(self, x: torch.Tensor) -> object:
        """Return rows (N, 4), and a number for each."""
        x, penalty = super().forward(x)
        return x, penalty


class OfThree(Flow):
    """The same, and something more."""

    def forward(self, x: torch.Tensor) -> object:
        """Return rows (N, 4), and two numbers for each."""
        x, log_det = super().forward(x)
        return x, log_det, log_det


class Narrow(Flow):
    """The same, of which some columns are left out."""

    def forward(self, x: torch.Tensor) -> object:
        """Return rows (N, 2), and a number for each."""
        x, log_det = super().forward(x)
        return x[:, :2], log_det


class Steady(Flow):
    """Scales all rows alike."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.1 * torch.ones(4))

    def forward(self, x: torch.Tensor) -> object:
        """Return rows (N, 4), and a number for each."""
        log_det = 2 * self.scale.sum() * x.new_ones(len(x))
        return x * self.scale.exp(), log_det


class Scale(nn.Module):
    """Scales all rows alike, and counts each scale some times."""

    def __init__(self, times: float, more: float = 0.0) -> None:
        super().__init__()
        self.scale, self.times, self.more = nn.Parameter(torch.zeros(4)), times, more

    def forward(self, x: torch.Tensor) -> object:
        """Return rows (N, 4), and one number."""
        return x * self.scale.exp(), self.times * self.scale.sum() + self.more


class Both(nn.Module):
    """Two layers that are called by themselves, of which the first one is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Scale(2.0), Scale(1.0)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """Return minus a log-likelihood."""
        x, first_log_det = self.first(x)
        x, second_log_det = self.second(x)
        return (0.5 * x.square().sum(1) - first_log_det - second_log_det).mean()


def by_name(flow: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return minus a log-likelihood."""
    z, log_det = flow(x)
    return (0.5 * z.square().sum(1) - log_det).mean()


def by_layers(both: Both, x: torch.Tensor) -> torch.Tensor:
    """Return what the layers are called for."""
    return both.score(x)


def by_another(flow: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the same, of what has another name."""
    z, extra = flow(x)
    return (0.5 * z.square().sum(1) - extra).mean()


def minus(z: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return minus a log-likelihood."""
    return (0.5 * z.square().sum(1) - number).mean()


def plus(z: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return the same, with the other sign."""
    return (0.5 * z.square().sum(1) + number).mean()


def apart(z: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return something that pulls numbers apart."""
    return z.square().mean() + (number - number.mean()).square().mean() + number[0] - number[1]


def found(
    flow: nn.Module, lose: Callable = minus, steps: int = 12, climbs: bool = False
) -> list[tuple[str, float]]:
    """Train a flow, and return what is told of it."""
    torch.manual_seed(0)
    mix = torch.randn(4, 4)
    optimizer = torch.optim.SGD(
        flow.parameters(),
        lr=1e-2 if lose in (by_name, by_another, by_layers) else 1e-3,
        maximize=climbs,
    )
    with Recorder("x") as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(16, 4) @ mix
            whole = lose in (by_name, by_another, by_layers)
            (lose(flow, x) if whole else lose(*flow(x)[:2])).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "log determinant"]
    assert all(probe.measured == probe.reference for probe in probes)
    return [(probe.label, probe.measured) for probe in probes]


def test_another_number() -> None:
    """That of one layer, and half of both."""
    assert found(Flow(lambda one, other: other + 0 * one)) == [("value", 3)]
    assert found(Flow(lambda one, other: 0.5 * (one + other))) == [("value", 3)]


def test_a_number_that_moves_otherwise() -> None:
    """One for all rows, and called so where it is unpacked: it is held against other looks."""
    assert found(Scale(2.0), by_name, 20) == [("value", 4)]
    assert found(Scale(2.0), by_another, 20) == []
    assert found(Scale(1.0, 7.0), by_name, 20) == []
    assert found(Scale(0.25), by_name, 20) == []


def test_one_layer_of_several() -> None:
    """What is right after it does not make it right."""
    assert found(Both(), by_layers, 20) == [("value", 4)]


def test_the_other_sign() -> None:
    """Of the logarithm, and of minus the logarithm."""
    assert found(Flow(), plus) == [("sign", 3)]
    assert found(Flow(lambda one, other: -one - other)) == [("sign", 3)]
    assert found(Unnamed(), plus) == [("sign", 3)]
    assert found(Flow(), plus, climbs=True) == []


@pytest.mark.parametrize(
    ("flow", "lose"),
    [
        (Flow(), minus),
        (Flow(lambda one, other: -one - other), plus),
        (Flow(lambda one, other: (one + other) / 4), minus),
        (Flow(lambda one, other: one + other - 5), minus),
        (Flow(lambda one, other: (one + other)[:, None]), lambda z, n: minus(z, n[:, 0])),
        (Flow(), apart),
        (Flow(lambda one, other: (one + other).detach()), plus),
        (Unnamed(lambda one, other: other + 0 * one), minus),
        (OfThree(lambda one, other: other + 0 * one), plus),
        (Narrow(), plus),
        (Steady(), plus),
    ],
    ids=[
        *("plain", "inverse", "mean", "constant", "column", "apart", "detached"),
        *("unnamed", "three", "narrow", "steady"),
    ],
)
def test_other_flows_are_left_alone(flow: nn.Module, lose: Callable) -> None:
    """Nothing is told of what is right, of what has another name, or of what tells nothing."""
    assert found(flow, lose) == []


def test_numbers_that_are_none() -> None:
    """Nothing is held against what is not finite."""
    rows = np.linspace(0.0, 1.0, 8)
    assert _compare(rows, rows, 4) == 1
    assert _compare(rows, -rows, 4) == -1
    assert _compare(rows, rows[::-1] ** 2, 4) == 0
    assert _compare(np.append(rows, np.inf), np.append(rows, 1.0), 4) is None
    assert _compare(np.append(rows, 1.0), np.append(rows, np.nan), 4) is None
