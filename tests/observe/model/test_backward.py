"""What the probe `backward` measures on real models."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainguard as tg
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.identical_parts import step
from trainguard.observe.model.observer import observe

X = tg.real("B 4", -1, 1)
TARGET = tg.real("B 3", -1, 1)


def passes(model: tg.Model, quantity: str) -> list[Pass]:
    """Observe a model, and return its passes of one quantity in the first case."""
    trace = observe(model, "cpu", "float32", Settings()).trace("backward")
    return [seen for seen in trace if seen.quantity == quantity and seen.case == 0]


def received(model: tg.Model) -> dict[str, Pass]:
    """Return what each parameter received."""
    return {seen.place: seen for seen in passes(model, "gradient")}


class Many(nn.Module):
    """One parameter of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.gated = nn.Linear(4, 3)
        self.gate = nn.Parameter(torch.zeros(()))
        self.detached = nn.Linear(4, 3)
        self.forgotten = nn.Linear(4, 3)
        self.left = nn.Parameter(torch.zeros(3))
        self.right = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.device_of = nn.Parameter(torch.empty(0))
        self.waves = nn.Parameter(torch.randn(3, dtype=torch.cfloat))
        self.training_only = nn.Parameter(torch.zeros(3))
        self.evaluation_only = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of all parts."""
        y = self.used(x) + self.gate * self.gated(x) + self.detached(x).detach()
        y = y + self.left * self.right + self.frozen + (y * self.waves).real
        return y + (self.training_only if self.training else self.evaluation_only)


def test_what_each_parameter_receives() -> None:
    """A gate that opens is waited for, evaluation is tried; the reason of a lack is told."""
    found = received(tg.Model(Many, x=X))
    lacking = {name: seen.detail for name, seen in found.items() if not seen.count}

    assert lacking == {
        "detached.weight": "unreached",
        "detached.bias": "unreached",
        "forgotten.weight": "uncalled",
        "forgotten.bias": "uncalled",
        "left": "zero",
        "right": "zero",
    }
    assert found["used.weight"].count == found["used.weight"].of
    assert 0 < found["gated.weight"].count < found["gated.weight"].of
    assert found["used.weight"].reference == 2
    assert {"frozen", "device_of"}.isdisjoint(found)


def test_what_is_declared_frozen_or_unused_is_left_out() -> None:
    """By globs."""
    found = received(tg.Model(Many, x=X, frozen="forg*", unused=("left", "detached.*")))
    assert {"forgotten.weight", "left", "detached.bias"}.isdisjoint(found)


def test_a_healthy_model_costs_one_pass() -> None:
    """More are made only where something lacks its gradient, or rows are the same."""
    found = received(tg.Model(nn.Linear(4, 3), input=X))
    assert {seen.of for seen in found.values()} == {1}


def test_a_gradient_that_is_no_number_is_told() -> None:
    """The loss is finite, and what flows back is not."""
    model = tg.Model(nn.Linear(4, 3), input=X, loss=lambda y: (0 * y).square().sum().sqrt())
    assert {seen.detail for seen in received(model).values()} == {"not finite"}


class Sampled(nn.Module):
    """A layer that is dropped in training, always."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of one or both layers."""
        y = self.first(x)
        return y if self.training else y + self.second(y)


def test_what_evaluation_reaches_is_reached() -> None:
    """A path may be dropped by chance in each pass of training."""
    assert received(tg.Model(Sampled, x=X))["second.weight"].count == 1


class Drawn(nn.Module):
    """A model that chooses its layers when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        self.chosen = int(torch.randint(2, ()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the chosen layer."""
        return self.layers[self.chosen](x)


def test_what_another_seed_reaches_is_reached() -> None:
    """A search of architectures draws a model anew."""
    found = received(tg.Model(Drawn, x=X))
    assert min(seen.count for seen in found.values()) > 0


class Rescaled(nn.Module):
    """A model that edits its weights where it evaluates, so that nothing can go back; a spare."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer, twice."""
        y = self.layer(self.layer(x).tanh())
        if not self.training:
            self.layer.weight.data.zero_()
            with torch.no_grad():
                self.layer.weight.mul_(2)
        return y


def test_a_backward_that_raises_in_evaluation_only() -> None:
    """Nobody trains there, so that it says nothing."""
    lacking = [seen.place for seen in received(tg.Model(Rescaled, x=X)).values() if not seen.count]
    assert lacking == ["spare.weight", "spare.bias"]


class Detector(nn.Module):
    """Returns a dict in training and a list in evaluation; one layer is a spare."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        """Return boxes."""
        return {"boxes": self.layer(x)} if self.training else [self.layer(x)]


def test_a_loss_that_cannot_take_the_outputs_of_evaluation() -> None:
    """Then evaluation is not tried, and training tells."""
    model = tg.Model(Detector, x=X, target=TARGET, loss=lambda o, target: error(o["boxes"], target))
    lacking = [seen.place for seen in received(model).values() if not seen.count]
    assert lacking == ["spare.weight", "spare.bias"]


def error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(output, target)


@pytest.mark.parametrize(
    ("activation", "bias", "active"),
    [
        (nn.ReLU(), 0.0, (0.3, 0.7)),
        (nn.ReLU(inplace=True), -9.0, (0.0, 0.0)),
        (torch.relu_, 9.0, (1.0, 1.0)),
    ],
)
def test_units_that_are_silent(activation: Any, bias: float, active: Any) -> None:
    """Each ReLU is counted once, under the module that it is called in."""

    class Units(nn.Module):
        """A layer with an activation."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 64)
            nn.init.constant_(self.inner.bias, bias)
            self.activation = activation

        def forward(self, x: Tensor) -> Tensor:
            """Return the activity."""
            return self.activation(self.inner(x))

    (seen,) = passes(tg.Model(Units, x=X), "activity")
    assert seen.of == 256
    assert active[0] <= seen.count / seen.of <= active[1]
    assert seen.place == ("activation" if isinstance(activation, nn.Module) else "")


def test_a_step_keeps_rows_together_that_have_one_gradient() -> None:
    """It moves each parameter by a share of its size, zeros and sparse or complex ones too."""
    table = nn.Embedding(50, 2, sparse=True)
    zeros = nn.Parameter(torch.zeros(3, 2))
    waves = nn.Parameter(torch.ones(2, dtype=torch.cfloat))
    still = nn.Parameter(torch.ones(2))
    before = table.weight.detach().clone()
    (
        table(torch.tensor([4])).sum() + zeros[:2].sum() + waves.abs().sum() + 0 * still.sum()
    ).backward()

    step([table.weight, zeros, waves, still])

    assert (table.weight != before).any(1).nonzero().flatten().tolist() == [4]
    assert torch.equal(zeros[0], zeros[1])
    assert zeros[0, 0] < 0 == zeros[2, 0]
    assert waves[0].real < 1
    assert torch.equal(still, torch.ones(2))


def test_scripted_models_are_observed_too() -> None:
    """They take no hooks."""
    model = tg.Model(lambda: torch.jit.script(nn.Linear(4, 3)), input=X)
    assert {seen.detail for seen in received(model).values()} == {""}
