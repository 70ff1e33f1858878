"""What the probe `backward` finds to be the same in real models, and to stay so."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass, Trace
from trainguard.observe.model.observer import observe

X = tg.real("B 4", -1, 1)
TARGET = tg.real("B 3", -1, 1)


def passes(model: tg.Model, quantity: str) -> list[Pass]:
    """Observe a model, and return its passes of one quantity in the first case."""
    trace = observe(model, "cpu", "float32", Settings()).trace("backward")
    return [seen for seen in trace if seen.quantity == quantity and seen.case == 0]


def error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(output, target)


def filled(*values: float, loss: bool = True) -> tg.Model:
    """Declare a model of two layers, whose weights are filled with one value or left alone."""

    def build() -> nn.Module:
        layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        for layer, value in zip((layers[0], layers[2]), values, strict=True):
            if value:
                nn.init.constant_(layer.weight, value)
                nn.init.zeros_(layer.bias)
        return layers

    more = {"target": TARGET, "loss": error} if loss else {}
    return tg.Model(build, input=X, **more)


@pytest.mark.parametrize(
    ("model", "twins"),
    [
        (filled(0.1, 0.1), [("0.weight", 1, 6)]),  # the targets tell the last rows apart
        (filled(0.1, 0.0), []),
        (filled(0.0, 1e-9), []),
        (filled(0.0, 0.0), []),
        (filled(0.1, 0.1, loss=False), []),
    ],
)
def test_rows_that_stay_the_same(model: tg.Model, twins: list[Any]) -> None:
    """Rows that are filled alike part where something tells them apart."""
    assert [(seen.place, seen.count, seen.of) for seen in passes(model, "twins")] == twins


class Mixture(nn.Module):
    """A head of a mixture of four normal distributions."""

    def __init__(self, deviation: float = 0.0, spread: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Linear(4, 8)
        nn.init.normal_(self.head.weight, std=deviation)
        with torch.no_grad():
            self.head.bias[:4] = torch.linspace(-spread, spread, 4)
            self.head.bias[4:] = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the means and the logits."""
        means, logits = self.head(x).chunk(2, -1)
        return {"means": means, "logits": logits}


def likelihood(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """Return the negative log-likelihood of one number under the mixture."""
    normal = torch.distributions.Normal(output["means"], 0.5).log_prob(target[:, :1])
    return -(normal + output["logits"].log_softmax(-1)).logsumexp(-1).mean()


@pytest.mark.parametrize(
    ("arguments", "components", "alike"),
    [
        ({}, "means", [4]),
        ({}, ("means", "logits"), [4, 4]),
        ({"deviation": 0.02}, ("means", "logits"), [0, 0]),
        ({"spread": 1.0}, ("means", "logits"), [0, 0]),  # logits start alike, and part
        ({}, {"means": 0}, [0]),  # along the batch: samples differ once the weight does
        ({}, "head.weight", [8]),
        ({"deviation": 0.02}, "head.*", [0, 0]),
    ],
)
def test_components_that_stay_the_same(arguments: Any, components: Any, alike: list[int]) -> None:
    """A likelihood tells components apart only where something else does."""
    model = tg.Model(
        Mixture, x=X, target=TARGET, loss=likelihood, arguments=arguments, components=components
    )
    assert [seen.count for seen in passes(model, "components")] == alike


def test_components_without_a_loss_are_judged_before_any_step() -> None:
    """A random projection would part what a likelihood keeps together."""
    model = tg.Model(Mixture, x=X, components="means")
    assert [seen.count for seen in passes(model, "components")] == [4]


def test_rows_that_are_not_used_are_no_twins() -> None:
    """Two rows of a table get one gradient, and the others none."""

    class Table(nn.Module):
        """A table that starts at zero."""

        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.zeros(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            """Return the product of the input with the sum of two rows."""
            return (x * (self.rows[0] + self.rows[1])).sum(-1, keepdim=True).expand(-1, 3)

    assert passes(tg.Model(Table, x=X, target=TARGET, loss=error), "twins") == []


def test_one_layer_at_several_places() -> None:
    """`[layer] * n` is one layer; copies are none, and a layer outside of lists may be shared."""
    layer = nn.Linear(4, 4)
    repeated = nn.Sequential(nn.ModuleList([layer] * 3), layer)
    repeated.forward = lambda x: layer(layer(x))
    found = passes(tg.Model(lambda: repeated, x=X), "repeated")
    assert [(seen.place, seen.count) for seen in found] == [("0.0 is 0.1 ...", 3)]
    healthy = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    assert passes(tg.Model(lambda: healthy, input=X), "repeated") == []
    (told,) = find_invariants("components_are_distinct")[0].judge(Trace("net", tuple(found)))
    assert (told.rank.value, str(told.measured)) == ("note", "3 places")
