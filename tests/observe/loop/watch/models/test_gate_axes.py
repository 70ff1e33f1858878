"""Gates, and over what their weights sum to one."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Tensor = torch.Tensor
Mix = Callable[[Tensor, Tensor], Tensor]
ROWS, PARTS = 12, 5


class Gated(nn.Module):
    """Parts of each sample, mixed by weights that are a softmax along some axis."""

    def __init__(self, mix: Mix, axis: int, parts: int = PARTS) -> None:
        super().__init__()
        self.gate, self.made = nn.Linear(4, parts), nn.Linear(4, 3 * parts)
        self.mix, self.axis = mix, axis

    def forward(self, x: Tensor) -> Tensor:
        """Return what is mixed of the parts (N, K, 3)."""
        weights = self.gate(x).softmax(self.axis)
        return self.mix(weights, self.made(x).reshape(len(x), -1, 3))


def looks(mix: Mix, axis: int, parts: int = PARTS) -> tuple[list[tuple], bool]:
    """Learn for ten steps, and return what was found, and whether there were such weights."""
    torch.manual_seed(0)
    model = Gated(mix, axis, parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(ROWS, 4)).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "gate axis"]
    told = [(probe.measured, probe.reference, probe.label) for probe in found]
    return told, "gate axis" in recorder.trace.conditions["looked"]


def summed(weights: Tensor, made: Tensor) -> Tensor:
    """Return the weighted sum of the parts."""
    return (weights.unsqueeze(-1) * made).sum(1)


def first(weights: Tensor, made: Tensor) -> Tensor:
    """Return the best part, times its weight."""
    best, place = weights.max(-1)
    return best[:, None] * made[torch.arange(len(made)), place]


def two(weights: Tensor, made: Tensor) -> Tensor:
    """Return the two best parts, with their weights."""
    best, places = weights.topk(2, dim=1)
    return (best[..., None] * made.gather(1, places[..., None].expand(-1, -1, 3))).sum(1)


def picked(weights: Tensor, made: Tensor) -> Tensor:
    """Return the first part, times the weight that is picked for it."""
    place = torch.zeros(len(made), 1, dtype=torch.long)
    return weights.gather(1, place) * made[:, 0]


def multiplied(weights: Tensor, made: Tensor) -> Tensor:
    """Return the weighted sum, as a product of matrices."""
    return torch.bmm(weights.unsqueeze(1), made)[:, 0]


def turned(weights: Tensor, made: Tensor) -> Tensor:
    """Return the same, with the weights behind."""
    return torch.bmm(made.transpose(1, 2), weights[..., None])[..., 0]


USES = [summed, first, two, picked, multiplied, turned]


@pytest.mark.parametrize("mix", USES, ids=lambda mix: mix.__name__)
def test_weights_over_the_samples(mix: Mix) -> None:
    """In all of the five steps that are looked at, and none of those over the parts."""
    assert looks(mix, 0) == ([(5, 5, f"({ROWS},{PARTS})")], True)
    assert looks(mix, 1) == ([], True)


def pooled(weights: Tensor, made: Tensor) -> Tensor:
    """Return one row of all samples, as of a bag."""
    return (weights[..., None] * made).sum(0)


def pooled_twice(weights: Tensor, made: Tensor) -> Tensor:
    """Return one number of all samples and parts."""
    return (weights[..., None] * made).sum((0, 1))


def spread(weights: Tensor, made: Tensor) -> Tensor:
    """Give what all samples have in common back to each of them, as linear attention does."""
    return made.mean(1) + (weights.T @ made.mean(1)).mean(0)


def chosen_by_experts(weights: Tensor, made: Tensor) -> Tensor:
    """Have each part choose its samples."""
    best, places = weights.topk(3, dim=0)
    own = best[..., None] * made[places, torch.arange(PARTS)]
    return made.mean(1).index_add(0, places.flatten(), own.flatten(0, 1))


@pytest.mark.parametrize(
    "mix", [pooled, pooled_twice, spread, chosen_by_experts], ids=lambda mix: mix.__name__
)
def test_what_the_samples_share(mix: Mix) -> None:
    """What is pooled, or handed round, is meant to sum to one over them."""
    assert looks(mix, 0) == ([], False)


def test_as_many_parts_as_samples() -> None:
    """They cannot be told apart."""
    assert looks(summed, 0, ROWS) == ([], False)
