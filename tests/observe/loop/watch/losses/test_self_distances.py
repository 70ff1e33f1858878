"""Distances in a loss whose two sides are one and the same."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Penalty = Callable[[nn.Module, nn.Module, torch.Tensor], torch.Tensor]


def found(keep: Callable[[nn.Module], nn.Module], lose: Penalty, steps: int = 10) -> list[str]:
    """Train with a loss that has a model and what was kept of it; return what is told."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    kept = keep(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(steps):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            ((model(x) - x[:, :2]).square().mean() + lose(model, kept, x)).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "self distance"]
    assert all(probe.measured == probe.reference == 4 for probe in probes)
    return [probe.label for probe in probes]


def pull(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Pull each parameter to what was kept, without a graph."""
    pairs = zip(model.parameters(), kept.parameters(), strict=True)
    return sum((p - q.detach()).pow(2).sum() for p, q in pairs) + 0 * x.sum()


def pull_by_norm(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Pull by the norm of the difference, with its graph."""
    pairs = zip(model.parameters(), kept.parameters(), strict=True)
    return sum((q - p).norm(2) for p, q in pairs) + 0 * x.sum()


def pull_by_product(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Pull by the difference times itself."""
    apart = model.weight - kept.weight.detach()
    return (apart * apart).sum() + 0 * x.sum()


def agree(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Hold the outputs of both together."""
    return F.mse_loss(model(x), kept(x).detach())


def scale(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Add what numbers are taken off and multiplied, and no distance of two tensors."""
    less, twice = torch.ops.aten.sub.Scalar, torch.ops.aten.mul.Scalar  # as code in C++ calls them
    return less(model(x), 1).square().mean() + 0 * twice(kept(x), 2).sum()


def learn_zeros(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Hold zeros together."""
    return F.mse_loss(0 * model(x), torch.zeros(8, 2)) + 0 * kept(x).sum()


def learn_one(model: nn.Module, kept: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Hold what is one against one, and the output against the input."""
    return F.mse_loss(model(x), x[:, 2:]) + F.mse_loss(1 + 0 * kept(x), torch.ones(8, 2))


@pytest.mark.parametrize(
    ("lose", "label"),
    [
        (pull, "a distance of parameters to constants"),
        (pull_by_product, "a distance of parameters to constants"),
        (pull_by_norm, "a distance of a tensor to itself"),
        (agree, "what a loss function is given"),
    ],
)
def test_what_is_kept_is_live(lose: Penalty, label: str) -> None:
    """The model itself is no copy of it; a deep copy is one, also before it has moved."""
    assert found(lambda model: model, lose) == [label]
    assert found(copy.deepcopy, lose) == []


@pytest.mark.parametrize("lose", [learn_zeros, learn_one, scale])
def test_zeros_say_nothing(lose: Penalty) -> None:
    """What is zero may well be meant to be; and one distance of a kind is enough that is not."""
    assert found(copy.deepcopy, lose) == []


class Block(nn.Module):
    """Does something to what comes in."""

    def __init__(self, join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.join = nn.Linear(4, 4), join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many numbers."""
        return self.join(x, self.inner(x))


def doubled(join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[tuple[str, float]]:
    """Train blocks that join what comes in and what they make; return what is told."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Block(join), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            (loss + loss).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "doubled"]
    return [(probe.label, probe.measured) for probe in probes]


@SHAPES
def test_sums_of_one_tensor() -> None:
    """The layer that made it is named; two that are made alike are two."""
    assert doubled(lambda _, made: made + made) == [("Sequential.1.inner", 4)]
    assert doubled(lambda _, made: made.relu() + made.relu()) == []


@pytest.mark.parametrize(
    "join",
    [
        lambda x, made: x + made,
        lambda x, made: 2 * made + x,
        lambda x, made: torch.add(made, made, alpha=0.5) + x,
        lambda x, made: made + made.clone() + x,
        lambda x, made: made + made.flip(1),
        lambda x, made: made + 1 + x,
    ],
    ids=["shortcut", "twice", "share", "copy", "turned", "number"],
)
def test_sums_of_two_are_left_alone(join: Callable) -> None:
    """So is a loss that is added to itself, a single number."""
    assert doubled(join) == []
