"""Noise that a model is to tell from its input: what tells that the input has it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(loss_of, plain: int = 0, kind: str = "noise") -> tuple[list[Probe], bool]:
    """Train on noise, after plain steps; return what was found, and whether it was looked for."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(32, 32)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(plain + 20):
            optimizer.zero_grad()
            x = torch.randn(64, 32)
            (net(x).square().mean() if step < plain else loss_of(net, x)).backward()
            optimizer.step()
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    looked = kind in recorder.trace.conditions["looked"]
    return [probe for probe in probes if probe.probe == kind], looked


def other(net, x) -> torch.Tensor:
    """Give the model other noise."""
    noise = torch.randn_like(x)
    return F.mse_loss(net(x + torch.randn_like(x)), noise)


def other_by_hand(net, x) -> torch.Tensor:
    """Give the model other noise, by a loss of one's own."""
    eps = torch.randn_like(x)
    return (eps - net(x + torch.randn_like(x))).abs().mean()


def other_scaled(net, x) -> torch.Tensor:
    """Give the model other noise, and scale the target by the sample."""
    noise = torch.randn_like(x)
    return F.mse_loss(net(x + torch.randn_like(x)), -noise / (1 + torch.rand(len(x), 1)))


def same(net, x) -> torch.Tensor:
    """Give the model the noise of the target, a tenth of its data."""
    noise = torch.randn_like(x)
    return F.mse_loss(net(x + 0.1 * noise), noise)


def mixed(net, x) -> torch.Tensor:
    """Predict another noisy copy of the data."""
    noise = torch.randn_like(x)
    return F.mse_loss(net(x + torch.randn_like(x)), x + noise)


def generated(net, x) -> torch.Tensor:
    """Learn from the noise itself."""
    noise = torch.randn_like(x)
    return F.mse_loss(net(noise), noise.flip(1))


@pytest.mark.parametrize("loss_of", [other, other_by_hand, other_scaled])
def test_noise_that_is_not_in_the_input(loss_of) -> None:
    """It correlates with the input no more than by chance."""
    (probe,), looked = found(loss_of)
    assert looked
    assert probe.measured <= probe.reference < 0.03


def test_noise_that_is_in_the_input() -> None:
    """It correlates, though nothing has been learned yet."""
    (probe,), _ = found(same)
    assert probe.measured > 3 * probe.reference


@pytest.mark.parametrize("loss_of", [mixed, generated])
def test_noise_that_is_not_the_target(loss_of) -> None:
    """Nothing is told of it."""
    assert found(loss_of) == ([], False)


@pytest.mark.parametrize(("plain", "expected"), [(20, True), (80, False)])
def test_noise_that_comes_late(plain, expected) -> None:
    """It is waited for, but not in each pass of a run that has none."""
    assert found(other, plain)[1] == expected


def uniform(net, x) -> torch.Tensor:
    """Draw the noise by rand."""
    noise = torch.rand_like(x)
    return F.mse_loss(net(x + noise), noise)


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (torch.randn(64, 32), [1.0]),
        (torch.cat([torch.randn(64, 32), torch.ones(64, 1)], dim=1), [1.0]),
        (torch.rand(64, 32), []),
        (torch.randn(64, 32) + 1, []),
        (3 * torch.randn(64, 32), []),
        (torch.randn(2, 32), []),
    ],
    ids=["normal", "beside a time", "uniform", "aside", "wide", "few"],
)
def test_what_samples_begin_from(begin: torch.Tensor, expected: list[float]) -> None:
    """An input without a graph that has the shape of the noise, and is normal."""

    def sample(net, x) -> torch.Tensor:
        """Learn from uniform noise, and begin a sample."""
        with torch.no_grad():
            net(begin) if begin.shape[1] == x.shape[1] else nn.Linear(33, 2)(begin)[:, :1]
        return uniform(net, x)

    assert [probe.measured for probe in found(sample, kind="normal start")[0]] == expected


@pytest.mark.parametrize(
    ("loss_of", "mean", "spread"), [(same, 0, 1), (other_scaled, 0, 1), (uniform, 0.5, 0.2887)]
)
def test_the_mean_of_noise(loss_of, mean: float, spread: float) -> None:
    """It is told of all that is predicted, as it was drawn."""
    (probe,), looked = found(loss_of, kind="noise mean")
    assert looked
    assert (probe.measured, probe.reference) == pytest.approx((mean, spread), abs=0.02)
