"""By how much data and noise are scaled in what a model is given."""

import pytest
import torch

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.noise_scales import NoiseScales

SHARES = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 60), dim=0)


@pytest.mark.parametrize("width", [2, 32])
def test_scales_are_found(width: int) -> None:
    """Of each row where it is long, of all rows of one time where they are short."""
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(256, width, generator=generator) for _ in range(2))
    times = torch.randint(12, (256,), generator=generator)
    a, b = times / 12, 1 + times / 3
    scales = NoiseScales()
    given = a[:, None] * x + b[:, None] * noise
    scales.add(given, noise, [torch.zeros_like(x), noise + 1, x], [torch.ones(256), times])
    assert scales.is_sum
    assert {(round(12 * one), round(3 * other)) for one, other in scales.pairs} == {
        (time, 3 + time) for time in range(12)
    }


def test_no_such_sum() -> None:
    """What is made otherwise, or of data that nobody sees, or of rows whose time is not known."""
    x, noise = torch.randn(64, 2), torch.randn(64, 2)
    times = torch.randint(8, (64,))
    for given, tables, when in [
        (x * noise, [x], [times]),
        (x.tanh() + noise, [x], [times]),
        (x + noise, [], [times]),
        (x + noise, [x], []),
        (x + noise, [x], [torch.arange(64)]),
    ]:
        scales = NoiseScales()
        scales.add(given, noise, tables, when)
        assert not scales.is_sum
        assert scales.pairs == []


def laws(diffuse) -> list[tuple[str, bool]]:
    """Train a model to tell noise; return the laws of scales, and whether there are many pairs."""
    torch.manual_seed(0)
    net = torch.nn.Linear(17, 16)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(6):
            optimizer.zero_grad()
            x, noise = torch.randn(64, 16), torch.randn(64, 16)
            times = torch.randint(60, (64, 1))
            given = torch.cat([diffuse(SHARES[times], x, noise), times / 60], dim=1)
            torch.nn.functional.mse_loss(net(given), noise).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "noise scale"]
    return [(probe.label, probe.reference > 64) for probe in found]


def test_laws_without_a_root() -> None:
    """Each by its name, and none of what keeps the variance or moves in a straight line."""
    assert laws(lambda s, x, n: s.sqrt() * x + (1 - s) * n) == [("a * a + b", True)]
    assert laws(lambda s, x, n: s * x + (1 - s).sqrt() * n) == [("a + b * b", True)]
    assert laws(lambda s, x, n: s.sqrt() * x + (1 - s).sqrt() * n) == []
    assert laws(lambda s, x, n: s * x + (1 - s) * n) == []
    assert laws(lambda s, x, n: x + s * n) == []
