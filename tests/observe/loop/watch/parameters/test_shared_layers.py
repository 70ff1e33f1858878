"""Layers that stand at several places of a list."""

import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Stack(nn.Module):
    """A stack of layers."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.between = nn.Sequential(*[nn.ReLU()] * 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        for layer in self.layers:
            inputs = self.between(layer(inputs))
        return inputs


def probes(model: nn.Module, *, probe: bool = True) -> list[Probe]:
    """Record three steps and return the probes of this kind."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x", probe=probe) as recorder:
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "shared"]


def test_a_repeated_layer_is_told() -> None:
    """`[layer] * n` is told once, with its first two places and how many there are."""
    (probe,) = probes(Stack([nn.Linear(4, 4)] * 3))
    assert (probe.label, probe.measured) == ("Stack.layers.0 is Stack.layers.1 ...", 3.0)
    assert probe.source.startswith(f"{__file__}:")


def test_each_repeated_layer_is_told() -> None:
    """Two layers in turn are two."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    found = probes(nn.Sequential(first, second, first, second))
    assert [probe.label for probe in found] == [
        "Sequential.0 is Sequential.2",
        "Sequential.1 is Sequential.3",
    ]


def test_layers_of_their_own_are_not() -> None:
    """Neither are activations, which have no parameters, nor a layer outside of any list."""
    layer = nn.Linear(4, 4)
    model = nn.Sequential(Stack([layer, nn.Linear(4, 4)]), Stack([layer]))
    assert probes(model) == []


def test_probes_can_be_switched_off() -> None:
    """Without probes nothing is told."""
    assert probes(Stack([nn.Linear(4, 4)] * 3), probe=False) == []


class Wide(nn.Linear):
    """A layer that this file makes inside of a list that it multiplies."""


def make_layer() -> nn.Module:
    """Return a layer of another class."""
    return Affine(4)


class Affine(nn.Module):
    """A layer of another class."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale it."""
        return self.scale * x


def test_a_layer_made_in_a_list_that_is_multiplied() -> None:
    """It cannot be shared on purpose; what has a name may be."""
    norm = nn.LayerNorm(4)
    (made,) = probes(Stack([Wide(4, 4)] * 3))
    (returned,) = probes(Stack([make_layer()] * 3))
    (named,) = probes(nn.Sequential(*[norm] * 2))
    assert (made.reference, returned.reference, named.reference) == (1, 1, 0)
