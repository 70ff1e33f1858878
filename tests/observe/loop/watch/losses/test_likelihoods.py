"""Likelihoods by hand, and which variance they are least for."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def looks(loss: Loss, spreads: int = 3) -> list[tuple[float, int]]:
    """Make four steps with means and spreads of three numbers, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3 + spreads)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            made = model(torch.randn(16, 4))
            mean, raw = made[:, :3], made[:, 3:]
            optimizer.zero_grad()
            loss(mean, raw, torch.randn(16, 3)).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "likelihood"]
    return [(round(probe.measured, 4), probe.step) for probe in found]


def quarters(mean: torch.Tensor, raw: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return minus the mean logarithm of the likelihood, with its logarithm in two parts."""
    each = 0.25 * raw + 0.5 * (wanted - mean) ** 2 * torch.exp(-raw)
    return (each + 0.25 * raw).mean()


WRONG: dict[str, tuple[Loss, float]] = {
    "twice the logarithm": (lambda m, s, y: (s + 0.5 * (y - m) ** 2 * (-s).exp()).mean(), 0.5),
    "no half": (lambda m, s, y: (0.5 * s + (y - m) ** 2 / s.exp()).mean(), 2.0),
    "precision": (lambda m, s, y: (0.5 * s + 0.5 * (y - m) ** 2 * s.exp()).mean(), -1.0),
    "minus": (lambda m, s, y: (0.5 * (y - m) ** 2 * (-s).exp() - 0.5 * s).mean(), -1.0),
    "deviation": (lambda m, s, y: _of_deviation(m, F.softplus(s), y, 0.5), 0.5),
}
RIGHT: dict[str, Loss] = {
    "variance": lambda m, s, y: (0.5 * s + 0.5 * (y - m) ** 2 * torch.exp(-s)).mean(),
    "twice a quarter": quarters,
    "without halves": lambda m, s, y: (s + (y - m) ** 2 / s.exp()).sum(),
    "of a softplus": lambda m, s, y: _of_variance(m, F.softplus(s) + 1e-6, y),
    "deviation": lambda m, s, y: _of_deviation(m, F.softplus(s), y, 1.0),
    "logarithm of it": lambda m, s, y: (s + 0.5 * ((y - m) ** 2) * torch.exp(-2 * s)).mean(),
    "sums of a softplus": lambda m, s, y: _sums(m, F.softplus(s), y),
    "precision": lambda m, s, y: (0.5 * (y - m) ** 2 * s.exp() - 0.5 * s).mean(),
    "sizes": lambda m, s, y: (s + (y - m).abs() * torch.exp(-s)).mean(),
    "weighed": lambda m, s, y: (_each(m, s, y) * s.detach().exp() ** 0.5).mean(),
    "no logarithm": lambda m, s, y: ((y - m) ** 2 * torch.exp(-s)).mean() + s.square().mean(),
}


def _each(mean: torch.Tensor, raw: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return minus the logarithm of each likelihood."""
    return 0.5 * raw + 0.5 * (wanted - mean) ** 2 * torch.exp(-raw)


def _sums(mean: torch.Tensor, variance: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return twice minus the logarithm of the likelihood."""
    return (variance.log() + (wanted - mean) ** 2 / variance).sum()


def _of_variance(mean: torch.Tensor, variance: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return minus the mean logarithm of the likelihood, with a variance."""
    return (0.5 * variance.log() + (wanted - mean) ** 2 / (2 * variance)).mean()


def _of_deviation(
    mean: torch.Tensor, deviation: torch.Tensor, wanted: torch.Tensor, weight: float
) -> torch.Tensor:
    """Return the same with a deviation, whose logarithm has a weight."""
    return (deviation.log() / weight + (wanted - mean) ** 2 / (2 * deviation**2)).mean()


@pytest.mark.parametrize("name", WRONG)
def test_another_variance_is_told(name: str) -> None:
    """What it is, in squares of the errors, at the three of four steps that are looked at."""
    loss, ratio = WRONG[name]
    assert looks(loss) == [(ratio, 3)]


@pytest.mark.parametrize("name", RIGHT)
def test_the_variance_of_the_errors_is_right(name: str) -> None:
    """However it is written, and whatever weighs the samples."""
    assert looks(RIGHT[name]) == []


def test_one_variance_that_is_repeated_for_several_errors() -> None:
    """Its logarithm counts as often as it is repeated, as in the sum with the errors."""
    assert looks(_each_mean, spreads=1) == []
    assert looks(lambda m, s, y: (_each(m, s, y) + 0.5 * s).mean(), spreads=1) == [(0.5, 3)]


def _each_mean(mean: torch.Tensor, raw: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return minus the mean logarithm of the likelihood, as torch has it."""
    return -torch.distributions.Normal(mean, (0.5 * raw).exp()).log_prob(wanted).mean()


def test_one_variance_of_several_errors() -> None:
    """It has as many logarithms as there are errors."""

    def once(mean: torch.Tensor, raw: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Count the logarithm once, and the errors each."""
        return (0.5 * raw).sum() + (0.5 * (wanted - mean) ** 2 * torch.exp(-raw)).sum()

    def each(mean: torch.Tensor, raw: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Count both as often."""
        return (1.5 * raw).sum() + (0.5 * (wanted - mean) ** 2 * torch.exp(-raw)).sum()

    assert looks(once, spreads=1) == [(3.0, 3)]
    assert looks(each, spreads=1) == []
