"""How noisy the noisiest samples are that a model learns from."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.noisy_mixtures import NamedTable, find_mixtures

SHARES = 1 - torch.linspace(1e-3, 0.1, 60)
PRODUCTS = SHARES.cumprod(0)


class Diffusion(nn.Module):
    """A process that learns inside of its own call, with its schedule as a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Linear(width + 1, width)
        self.register_buffer("betas", 1 - SHARES)

    def forward(self, x: torch.Tensor, table: torch.Tensor, name: str) -> torch.Tensor:
        """Return the distance to the noise, the data, or both."""
        t = torch.randint(0, 60, (len(x),))
        noise = torch.randn_like(x)
        a, b = table[t][:, None].sqrt(), (1 - table[t])[:, None].sqrt()
        noisy = a * x + b * noise
        target = {"noise": noise, "data": x, "both": a * noise - b * x, "other": x.flip(1)}[name]
        return F.mse_loss(self.net(torch.cat([noisy, t[:, None] / 60], 1)), target)


def along_the_data(net: Diffusion, x: torch.Tensor) -> torch.Tensor:
    """Return the same as by hand, where a few rows of noise point where their data do."""
    times, e, betas = torch.randint(0, 60, (len(x),)), torch.randn_like(x), 1 - SHARES
    e[:3] = 1.001 * x[:3]
    mixed = (1 - betas[times])[:, None].sqrt() * x + betas[times][:, None].sqrt() * e
    return (net.net(torch.cat([mixed, times[:, None] / 60], 1)) - e).square().mean()


def by_hand(net: Diffusion, x: torch.Tensor) -> torch.Tensor:
    """Return a distance whose function has returned when it goes backward."""
    times, e = torch.randint(0, 60, (len(x),)), torch.randn_like(x)
    betas = 1 - SHARES
    mixed = (1 - betas[times])[:, None].sqrt() * x + betas[times][:, None].sqrt() * e
    return (net.net(torch.cat([mixed, times[:, None] / 60], 1)) - e).square().mean()


def one_step_on(net: Diffusion, x: torch.Tensor) -> torch.Tensor:
    """Return a distance of what is one step noisier than what is noisy."""
    betas, t, noise = 1 - SHARES, torch.randint(0, 60, (len(x),)), torch.randn_like(x)
    before = 0.7 * x + 0.71 * torch.randn_like(x)
    after = (1 - betas[t])[:, None].sqrt() * before + betas[t][:, None].sqrt() * noise
    return F.mse_loss(net.net(torch.cat([after, t[:, None] / 60], 1)), noise)


def found(lose: Callable, width: int = 12) -> list[tuple[str, bool]]:
    """Train a process; return what is told of its noise, and whether that is below a third."""
    torch.manual_seed(0)
    net = Diffusion(width)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(8):
            optimizer.zero_grad()
            lose(net, torch.rand(64, width)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "noise levels"]
    assert all(probe.reference == 8 * 64 for probe in probes)
    return [(probe.label, probe.measured < 1 / 3) for probe in probes]


@pytest.mark.parametrize("target", ["noise", "data", "both"])
@pytest.mark.parametrize("width", [2, 12])
def test_the_noise_of_one_step(target: str, width: int) -> None:
    """It is known by its schedule, whatever is predicted of it."""
    lose = lambda net, x: net(x, SHARES, target)  # noqa: E731 as the others are
    assert found(lose, width) == [("one step", True)]


def test_a_loss_by_hand() -> None:
    """What its function named is looked at while it runs."""
    assert found(by_hand) == [("one step", True)]
    assert found(along_the_data) == [("one step", True)]


def test_variances_of_steps_by_name(monkeypatch) -> None:
    """They are known without their products."""
    monkeypatch.delitem(globals(), "PRODUCTS")
    assert found(by_hand) == [("one step", True)]


def test_noise_that_ends_early() -> None:
    """Its schedule is none of single steps."""
    assert found(lambda net, x: net(x, PRODUCTS.sqrt().sqrt(), "noise")) == []
    assert found(lambda net, x: net(x, 1 - (1 - PRODUCTS) / 12, "noise")) == [("", True)]


@pytest.mark.parametrize(
    "lose",
    [
        lambda net, x: net(x, PRODUCTS, "noise"),
        lambda net, x: net(x, SHARES, "other"),
        lambda net, x: net(x, torch.full((60,), 0.96), "noise"),
        one_step_on,
    ],
    ids=["all steps", "another target", "one level", "noisy data"],
)
def test_healthy_noise(lose: Callable) -> None:
    """Nothing is told of it."""
    assert found(lose) == []


def mixed(name: str, a: np.ndarray, b: np.ndarray, names: str = "x") -> list[np.ndarray]:
    """Return the levels of mixtures that are found of two tables, by their names and scales."""
    random = np.random.default_rng(0)
    x, noise = random.uniform(size=(40, 8)), random.standard_normal((40, 8))
    both = a[:, None] * x + b[:, None] * noise
    tables = [NamedTable({names}, x), NamedTable({name}, noise), NamedTable({"y"}, both)]
    return [mixture.levels for mixture in find_mixtures(tables, noise)]


B = np.linspace(0.02, 0.3, 40)
A = np.sqrt(1 - B * B)


def test_laws_of_scales() -> None:
    """The squares add up to one; flows and growing variances keep other laws."""
    (levels,) = mixed("eps", A, B)
    assert np.allclose(levels, B)
    assert mixed("eps", 1 - B, B) == mixed("eps", np.ones(40), B) == []


def test_which_part_is_the_noise() -> None:
    """By its name, or as the only one that is normal."""
    assert np.allclose(mixed("z", A, B), B)
    assert np.allclose(mixed("z", A, B, "noise"), A)


class Timed(nn.Module):
    """Tells noise by a time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(7, 6)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the noise (N, 6)."""
        return self.net(torch.cat([x, t.reshape(len(x), 1).float() / 60], 1))


class Labelled(Timed):
    """Tells noise by a label."""

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the noise (N, 6)."""
        return super().forward(x, label)


def timed(tell: Callable, kind: type = Timed, steps: int = 12) -> list[tuple[str, bool, float]]:
    """Train with times that are told in some way; return what is said of them."""
    torch.manual_seed(0)
    net = kind()
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(steps):
            x, times = torch.rand(64, 6), torch.randint(0, 60, (64,))
            noise, shares = torch.randn_like(x), PRODUCTS[times][:, None]
            optimizer.zero_grad()
            told = net(shares.sqrt() * x + (1 - shares).sqrt() * noise, tell(times))
            F.mse_loss(told, noise).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "noise times"]
    return [(probe.label, abs(probe.measured) < 0.2, probe.reference) for probe in probes]


def test_times_of_others() -> None:
    """They are drawn once more, or permuted."""
    assert timed(lambda times: torch.randint(0, 60, times.shape)) == [("t", True, 512)]
    assert timed(lambda times: times[torch.randperm(64)][:, None]) == [("t", True, 512)]


@pytest.mark.parametrize(
    "tell",
    [
        lambda times: times,
        lambda times: 59 - times,
        lambda times: (times + torch.randint(-9, 10, times.shape)).clamp(0, 59),
        lambda times: torch.full_like(times, 7),
        lambda times: times[torch.randperm(64)] // 16,
    ],
    ids=["same", "turned", "near", "one", "few"],
)
def test_times_that_go_with_the_noise(tell: Callable) -> None:
    """Either way; what is a constant, or has a few values, tells no times."""
    assert timed(tell) == []


def test_what_is_no_time() -> None:
    """A label has nothing to do with the noise, nor have a few rows."""
    assert timed(lambda times: torch.randint(0, 60, times.shape), Labelled) == []
    assert timed(lambda times: torch.randint(0, 60, times.shape), steps=7) == []
