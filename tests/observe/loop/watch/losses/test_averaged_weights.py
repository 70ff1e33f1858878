"""Weights of samples that multiply a loss which is one number for all of them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses import averaged_weights

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "function": lambda z, y, w: (F.binary_cross_entropy_with_logits(z, y) * w).mean(),
    "by hand": lambda z, y, w: ((z - y).square().mean() * w[:, None]).sum() / w.sum(),
    "sum": lambda z, y, w: -(w * (z - y).abs().sum()).mean().neg() / 3,
    "beside another": lambda z, y, w: F.mse_loss(z, y) + 0.1 * (w * F.l1_loss(z, y)).sum(),
    "focal": lambda z, y, w: (w * (1 - (-F.mse_loss(z, y)).exp()) * F.mse_loss(z, y)).mean(),
}
EACH: dict[str, Loss] = {
    "each": lambda z, y, w: (F.binary_cross_entropy_with_logits(z, y, reduction="none") * w).mean(),
    "mean of weights": lambda z, y, w: F.mse_loss(z, y) * w.mean(),
    "equal": lambda z, y, w: (F.mse_loss(z, y) * torch.ones(6)).mean(),
    "others": lambda z, y, w: (F.mse_loss(z, y) * torch.rand(5)).mean(),
    "not only summed": lambda z, y, w: (F.mse_loss(z, y) * w).square().mean(),
    "a number that learns": lambda z, y, w: (z - w.mul(z.sum().exp()).sub(y)).square().mean(),
}


def recorded(loss: Loss, steady: bool = False) -> Recorder:
    """Train with a loss of outputs, targets and weights."""
    torch.manual_seed(0)
    model, weights = nn.Linear(4, 1), torch.rand(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            drawn = weights if steady else torch.rand(6)
            loss(model(torch.randn(6, 4)).squeeze(1), torch.rand(6), drawn).backward()
            optimizer.step()
    return recorder


def probes(loss: Loss, kind: str = "averaged", steady: bool = False) -> list[Probe]:
    """Train, and return the probes of one kind."""
    recorder = recorded(loss, steady)
    assert "averaged" in recorder.trace.conditions["looked"]
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == kind]


@SHAPES
@pytest.mark.parametrize("name", LOSSES)
def test_weights_of_one_number_are_told(name: str) -> None:
    """They are, in each step that is looked at, as those of samples: they change with these."""
    (probe,) = probes(LOSSES[name])
    assert (probe.measured, probe.reference, probe.label) == (3, 6, "of samples")


@SHAPES
def test_weights_of_places_in_pictures() -> None:
    """A loss of classes in pictures is one number too."""
    model = nn.Conv2d(1, 3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            classes, quality = torch.randint(3, (4, 8, 8)), torch.rand(4, 8, 8)
            (F.cross_entropy(model(torch.randn(4, 1, 8, 8)), classes) * quality).mean().backward()
            optimizer.step()
    (probe,) = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "averaged"]
    assert (probe.measured, probe.reference, probe.label) == (3, 256, "of samples")


@SHAPES
@pytest.mark.parametrize("name", EACH)
def test_weights_of_each_are_not(name: str) -> None:
    """Neither are such that are the same for all, or as many as something else."""
    assert probes(EACH[name]) == []


@SHAPES
def test_weights_that_stay_may_be_of_something_else() -> None:
    """Where they are the same in all steps, it is not said whose they are."""
    (probe,) = probes(LOSSES["function"], steady=True)
    assert probe.label == ""


@SHAPES
def test_a_mask_of_what_the_mean_leaves_out_is_not() -> None:
    """It is idle where the loss ignores the same targets."""
    mask = torch.tensor([1.0, 0, 1, 0, 1, 1])

    def loss(z: torch.Tensor, y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Return a cross entropy of two classes that is masked twice."""
        target = (y > 0.5).long().masked_fill(mask == 0, -100)
        return (F.cross_entropy(torch.stack([z, -z], 1), target) * mask).sum() / mask.sum()

    assert probes(loss) == []


@SHAPES
def test_a_mask_of_one_channel_is_told() -> None:
    """It is one of the elements of the loss, though there are more of these."""

    def loss(z: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Return a mean over three channels, times a mask for each place."""
        wide = (z * y).reshape(2, 1, 3).expand(2, 3, 3)
        return (wide.square().mean() * w.reshape(2, 1, 3)).mean()

    (probe,) = probes(loss)
    assert (probe.measured, probe.label) == (3, "of samples")


@SHAPES
def test_a_focal_loss_of_a_mean_is_told() -> None:
    """It is, in whatever order its factors stand; that of each sample is not."""

    def focal(z: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        """Return the focal loss of a binary cross entropy."""
        ce = F.binary_cross_entropy_with_logits(z, y, reduction=reduction)
        return (ce * 0.25 * (1 - torch.exp(-ce)) ** 2).mean()

    (probe,) = probes(lambda z, y, _: focal(z, y), "focal")
    assert probe.measured == 3
    assert probes(lambda z, y, _: focal(z, y, "none"), "focal") == []


def test_a_graph_that_tells_no_shapes_was_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old torch does not say how many numbers a node made: that is no pass."""
    monkeypatch.setattr(averaged_weights, "_size", lambda _: 0)
    assert "averaged" not in recorded(LOSSES["function"]).trace.conditions["looked"]
