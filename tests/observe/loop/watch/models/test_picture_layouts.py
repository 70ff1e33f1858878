"""What is seen of pictures: whether they are read in the order in which they are stored."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

SIZE = 24


def smooth(noise: float) -> torch.Tensor:
    """Return pictures (N, H, W, C) in which neighbours are alike, and colours go together."""
    coarse = torch.rand(64, 1, 6, 6) + 0.3 * torch.rand(64, 3, 6, 6)
    pictures = F.interpolate(coarse, size=SIZE, mode="bilinear").permute(0, 2, 3, 1)
    return (pictures + noise * torch.randn(pictures.shape)).contiguous()


def given(pictures: torch.Tensor) -> list[tuple[float, float, str]]:
    """Train on pictures (N, C, H, W) for some steps; return what was found."""
    model = nn.Sequential(nn.Conv2d(pictures.shape[1], 4, 3), nn.Flatten(), nn.LazyLinear(1))
    model(pictures[:2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(8):
            loss = model(pictures[torch.randperm(64)[:48]]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "interleaved"]
    return [(probe.measured, probe.reference, probe.label) for probe in probes]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4])
def test_pictures_that_are_reshaped_are_found(noise: float) -> None:
    """Be they ever so noisy, and their colours alike."""
    torch.manual_seed(0)
    pictures = smooth(noise).reshape(64, 3, SIZE, SIZE)
    assert given(pictures) == [(6.0, 6.0, f"(N,3,{SIZE},{SIZE})")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: smooth(0.0).permute(0, 3, 1, 2).contiguous(),
        lambda: smooth(0.4).permute(0, 3, 1, 2).contiguous(),
        lambda: torch.randn(64, 3, SIZE, SIZE),
        lambda: smooth(0.0).permute(0, 3, 1, 2),
        lambda: (
            torch.sin(2.1 * torch.arange(SIZE)).expand(64, 3, SIZE, SIZE)
            + 0.1 * torch.randn(64, 3, SIZE, SIZE)
        ),
        lambda: torch.rand(64, 4, SIZE, SIZE).lt(0.05) * 1.0,
        lambda: smooth(0.1)[..., :2].reshape(64, 2, SIZE, SIZE),
    ],
    ids=["smooth", "noisy", "noise", "strides", "stripes", "sparse", "two channels"],
)
def test_pictures_as_they_are_say_nothing(make: Callable[[], torch.Tensor]) -> None:
    """Nor do those that have no neighbours, or patterns that come again."""
    torch.manual_seed(0)
    assert given(make()) == []
