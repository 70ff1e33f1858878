"""What torch draws for new layers is known by its distribution."""

import pytest
import torch
from torch import nn

from tests.observe.loop.recorded_parameters import flags, parameters_of
from trainguard.observe.loop.watch.parameters.initial_draws import is_as_drawn

LAYERS = (
    lambda: nn.Linear(32, 6),
    lambda: nn.Conv2d(3, 8, 3),
    lambda: nn.ConvTranspose2d(8, 6, 4),
    lambda: nn.GRU(8, 16),
    lambda: nn.Embedding(50, 16, padding_idx=0),
    lambda: nn.Linear(32, 64, dtype=torch.bfloat16),
)


@pytest.mark.parametrize("make", LAYERS)
def test_new_layers(make) -> None:
    """Of 50 new ones hardly one is not known; none is once it is scaled, or has another shape."""
    layers = []
    for seed in range(50):
        torch.manual_seed(seed)
        layers.append(make())
    weights = [(layer, next(layer.parameters())) for layer in layers]
    assert sum(is_as_drawn(*pair) for pair in weights) >= 49
    assert not any(is_as_drawn(layer, 1.5 * weight.detach()) for layer, weight in weights)
    assert not any(is_as_drawn(layer, weight.detach() ** 3) for layer, weight in weights)


def test_what_cannot_be_told() -> None:
    """A few numbers, vectors, layers of other classes, and what has no memory."""
    few, norm = nn.Linear(4, 4), nn.LayerNorm(128)
    away = nn.Linear(32, 32, device="meta")
    for layer in (few, norm, away):
        assert not is_as_drawn(layer, layer.weight)
    attention = nn.MultiheadAttention(16, 2)
    assert not is_as_drawn(attention, attention.in_proj_weight)


class Asking(nn.Module):
    """A frozen layer in front of one that learns, and one that is asked for a target."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 32).requires_grad_(False)
        self.wanted = nn.Linear(8, 32).requires_grad_(False)
        self.back = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return how far the prediction is from the target."""
        with torch.no_grad():
            wanted = self.wanted(x)
        return (self.back(self.front(x)) - wanted).square().mean()


def test_what_is_asked_without_a_graph_is_a_target() -> None:
    """Of two frozen layers, the one in front is as it was drawn, and the target may be."""

    def train() -> nn.Module:
        """Make a few steps."""
        model = Asking()
        optimizer = torch.optim.SGD(model.back.parameters(), lr=0.1)
        for batch in torch.randn(6, 4, 8):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
        return model

    seen = parameters_of(train)
    assert {name for name, p in seen.items() if p.drawn} == {"Asking.front.weight"}
    assert flags(seen["Asking.front.weight"]) == {"called"}
