"""Inputs that are scaled by what variables call a mean and a deviation."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(rows: torch.Tensor, middle, width, name: str = "std") -> list[str]:
    """Learn from rows beside a mean and a deviation, and return which mistake explains them."""
    first = rows.movedim(1, -1) if rows.dim() > 3 else rows
    model = nn.Linear(first.shape[-1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scale = SimpleNamespace(**{"x_mean": middle, f"x_{name}": width})

    class Net(nn.Module):
        """Takes pictures by their channels."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return a number for each place."""
            return self.model(x.movedim(1, -1) if x.dim() > 3 else x)

    net = Net()
    with Recorder("x") as recorder:
        for part in rows.split(40):
            optimizer.zero_grad()
            net(part).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    del scale
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "misread scale"]
    return [probe.label.rsplit(" ", 2)[0] for probe in probes]


DATA = torch.randn(600, 5) * torch.tensor([3.0, 0.2, 40.0, 8.0, 1.5]) + torch.tensor(
    [5.0, 2.0, 100.0, 1.0, 20.0]
)
MEAN, STD = DATA.mean(0), DATA.std(0)


@pytest.mark.parametrize(
    ("rows", "mistake"),
    [
        ((DATA - STD) / MEAN, "exchanged"),
        (((DATA - MEAN) / STD - MEAN) / STD, "twice"),
        ((DATA - MEAN) / STD**2, "squared"),
        ((DATA - MEAN) / MEAN, "the mean"),
        ((DATA - MEAN) * STD, "multiplied"),
    ],
)
def test_each_mistake_is_known(rows, mistake) -> None:
    """By the mean and the deviation that it leaves; whatever the numbers are kept in."""
    assert found(rows, MEAN, STD) == [mistake]
    assert found(rows, MEAN.numpy(), STD.numpy()) == [mistake]
    assert found(rows, tuple(MEAN.tolist()), STD.tolist()) == [mistake]
    assert found(rows, MEAN, STD.square(), "var") == [mistake]


def test_channels_and_single_numbers_are_known() -> None:
    """Of pictures, and of all numbers at once."""
    pictures = torch.rand(200, 3, 8, 8) * torch.tensor([0.9, 0.5, 0.7])[:, None, None]
    mean, std = pictures.mean((0, 2, 3)), pictures.std((0, 2, 3))
    shape = (3, 1, 1)
    twice = (pictures - mean.view(shape)) / std.view(shape)
    assert found((twice - mean.view(shape)) / std.view(shape), mean, std) == ["twice"]
    assert found((twice - 0.45) / 0.22, 0.45, 0.22) == ["twice"]
    assert found(twice, mean, std) == []


@pytest.mark.parametrize(
    ("rows", "mean", "std"),
    [
        ((DATA - MEAN) / STD, MEAN, STD),
        (DATA, MEAN, STD),  # the model may do it
        (DATA / STD, MEAN, STD),
        (DATA - MEAN, MEAN, STD),
        (torch.randn(600, 5) * 2, 0.0, 0.5),  # of noise
        ((DATA - STD) / MEAN, MEAN[:2], STD[:2]),
        ((DATA - STD)[:200] / MEAN, MEAN, STD),
        ((DATA - MEAN) / STD, 0.5, 1.0),  # whichever use of them it might be
    ],
    ids=["right", "raw", "no mean", "no deviation", "noise", "others", "few", "one"],
)
def test_other_scales_are_fine(rows, mean, std) -> None:
    """What is scaled rightly, in part, elsewhere, or by something else."""
    assert found(rows, mean, std) == []


def test_numbers_of_different_names_are_no_pair() -> None:
    """A deviation of something else scales nothing."""
    assert found((DATA - STD) / MEAN, MEAN, STD, "target_std") == []


@pytest.mark.parametrize("begin", [True, False])
def test_padding_is_in_no_scale(begin: bool) -> None:
    """Sequences are filled up by zeros, at either end: the rest is scaled as the names say."""
    torch.manual_seed(0)
    rows, short = torch.randn(600, 12, 5), torch.arange(12) >= torch.randint(2, 9, (600, 1))
    padded = rows.masked_fill((short.flip(1) if begin else short)[..., None], 0.0)
    shrunk = float((~short).float().mean()) ** 0.5
    assert found(padded, MEAN[:1], 1 / shrunk * torch.ones(1)) == []
    assert found(rows * shrunk, MEAN[:1], 1 / shrunk * torch.ones(1)) == ["squared"]
    full = torch.randn(600, 12, 1)  # nothing is filled up: ends that are the same are none
    assert found(full / 3, torch.ones(1), 3 * torch.ones(1)) == ["squared"]
