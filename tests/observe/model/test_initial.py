"""What the probe `initial` measures on real models."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainguard as tg
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.cases import draw
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.observer import observe
from trainguard.observe.tools.isolation import isolate

X = tg.real("B 4", -1, 1)
LABEL = tg.integer("B", 0, 9)


def passes(model: tg.Model, quantity: str) -> list[Pass]:
    """Observe a model, and return its passes of one quantity."""
    trace = observe(model, "cpu", "float32", Settings()).trace("initial")
    return [seen for seen in trace if seen.quantity == quantity]


class Through(nn.Module):
    """A linear layer whose output goes through a function, of the module too."""

    def __init__(self, function: Any = None, width: int = 10) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.function = function or (lambda _module, y: y)

    def forward(self, x: Tensor) -> Any:
        """Return what the function makes of the normalised output."""
        return self.function(self, self.norm(self.layer(x)))


def through(function: Any, **declared: Any) -> tg.Model:
    """Declare a model of one function."""
    return tg.Model(Through, x=X, arguments={"function": function}, **declared)


def test_a_fresh_model_is_seen_from_four_seeds_and_in_evaluation() -> None:
    """Each seed has weights and inputs of its own; the second case has one seed."""
    model = tg.Model(Through, x=tg.real("B T 4", -1, 1))
    seen = passes(model, "output")
    assert [(p.case, p.at) for p in seen] == [
        (0, "seed 0"),
        (0, "evaluation mode"),
        *((0, f"seed {seed}") for seed in range(1, 4)),
        (1, "seed 0"),
        (1, "evaluation mode"),
    ]
    assert len({p.measured for p in seen}) == 5  # evaluation changes nothing without dropout
    assert all(p.measured < 0 < p.reference and p.count == 0 for p in seen)


def test_each_seed_has_weights_of_its_own() -> None:
    """Not only other inputs."""
    seen = passes(through(lambda module, _y: module.layer.weight), "output")
    assert len({p.measured for p in seen if p.case == 0 and p.at.startswith("seed")}) == 4


def test_a_given_module_is_seen_in_both_modes() -> None:
    """Whatever mode it was left in."""
    model = tg.Model(Through(lambda module, y: 0 * y + module.training).eval(), x=X)
    assert {(p.at[:4], p.measured) for p in passes(model, "output")} == {("seed", 1), ("eval", 0)}


def test_a_value_that_is_none_is_traced_to_its_module() -> None:
    """The innermost module that makes it out of numbers is named."""

    def spoil(module: Through, y: Tensor) -> Tensor:
        """Normalise what has no spread."""
        with torch.no_grad():
            module.norm.eps = 0.0
        return module.norm(torch.zeros_like(y))

    seen = passes(through(spoil), "output")[0]
    assert (seen.count, seen.of) == (40, 40)
    assert seen.detail == "`norm` (LayerNorm)"


def test_what_forward_itself_spoils_is_told_by_the_model() -> None:
    """No submodule is blamed."""
    seen = passes(through(lambda _module, y: y / 0 * 0), "output")[0]
    assert seen.count == 40
    assert seen.detail == "`Through` (Through)"


def test_infinities_of_a_mask_are_meant() -> None:
    """Nothing flows back from them, and every gradient is finite."""

    def mask(_module: Through, y: Tensor) -> Tensor:
        """Forbid every other class."""
        return y.masked_fill(torch.arange(10) % 2 == 1, -torch.inf)

    seen = passes(through(mask), "output")[0]
    assert (seen.count, seen.detail) == (0, "infinite on purpose")
    assert math.isfinite(seen.measured)


@pytest.mark.parametrize("spoil", [lambda _m, y: 1 / (0 * y), lambda _m, y: torch.exp(1e6 * y)])
def test_infinities_that_were_computed_are_not_meant(spoil: Any) -> None:
    """The gradient of a division by zero is no number, and that of an overflow neither."""
    assert passes(through(spoil), "output")[0].count > 0


def test_the_loss_is_measured_where_there_is_one() -> None:
    """It is the declared one, or what the model itself returns under that name."""
    declared = through(None, target=LABEL, loss=nn.CrossEntropyLoss())
    own = through(lambda _m, y: {"y": y, "loss": y.square().mean()})
    assert [seen.at for seen in passes(declared, "loss")] == [f"seed {i}" for i in range(4)]
    assert passes(own, "loss")[0].measured == pytest.approx(1.0, abs=0.01)
    assert passes(through(None), "loss") == []


@pytest.mark.parametrize(
    ("loss", "classes"),
    [
        (functional.cross_entropy, [10]),
        (lambda y, target: functional.cross_entropy(target=target, input=y), [10]),
        (nn.CrossEntropyLoss(), [10]),
        (nn.CrossEntropyLoss(label_smoothing=0.1), []),
        (nn.CrossEntropyLoss(weight=torch.ones(10)), []),
        (lambda y, target: functional.cross_entropy(y, target, reduction="sum"), []),
        (lambda y, target: functional.cross_entropy(y, y.softmax(-1).detach()), []),
        (lambda y, target: functional.cross_entropy(y @ y.T / 0.07, torch.arange(4)), []),
        (lambda y, target: functional.cross_entropy(y / 0.07, 0 * target), []),
        (
            lambda y, target: (
                functional.cross_entropy(y, target) + functional.cross_entropy(y[:, :5], target % 5)
            ),
            [10, 5],
        ),
    ],
)
def test_a_cross_entropy_is_seen_where_it_is_taken(loss: Any, classes: list[int]) -> None:
    """Only a plain mean over classes can be held against their logarithm."""
    found = passes(through(None, target=LABEL, loss=loss), "entropy")
    assert [seen.of for seen in found if seen.at == "seed 0"] == classes


def test_a_given_module_may_be_trained_already() -> None:
    """Its cross-entropy is not that of a guess, and nobody said it was."""
    model = tg.Model(Through(), x=X, target=LABEL, loss=functional.cross_entropy)
    assert passes(model, "entropy") == []
    assert len(passes(model, "loss")) == 4


def test_evaluation_may_return_other_things() -> None:
    """A detector returns losses in training and boxes in evaluation, which its loss cannot take."""

    def detect(module: Through, y: Tensor) -> Any:
        """Return a loss, or words."""
        return {"boxes": y, "miss": y.square().mean()} if module.training else ["a cat"]

    model = through(
        detect,
        target=tg.real("B 10", -1, 1),
        loss=lambda output, target: output["miss"] + (output["boxes"] - target).abs().mean(),
        initial_range={"boxes": (-9, 9)},
    )
    assert {seen.at for seen in passes(model, "output")} == {f"seed {i}" for i in range(4)}


def test_a_loss_that_is_a_module_stays_as_it_was() -> None:
    """It may keep statistics of what it is given."""
    loss = nn.Sequential(nn.BatchNorm1d(10), nn.Flatten(0))
    assert len(passes(through(None, loss=loss), "loss")) == 4
    assert int(loss[0].num_batches_tracked) == 0


def test_a_model_may_take_gradients_of_its_own() -> None:
    """A force is the gradient of an energy, in evaluation too."""

    def force(module: Through, y: Tensor) -> Tensor:
        """Return the gradient of an energy."""
        return torch.autograd.grad(y.square().sum(), module.layer.bias, create_graph=True)[0]

    assert all(seen.count == 0 for seen in passes(through(force), "output"))


class Plain(nn.Module):
    """A layer whose forward calls its input as torch's losses call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 that is what it is about
        """Return the layer's output."""
        output: Tensor = self.layer(input)
        return output


@pytest.mark.parametrize("make", [Plain, lambda: Plain()])  # noqa: PLW0108 one hides its forward
def test_an_input_by_the_name_of_what_a_loss_is_given(make) -> None:
    """The first argument of a loss is the output, whatever an input is called."""
    inputs = {"input": tg.real("B 4", -1, 1), "target": tg.integer("B", 0, 2)}
    model = tg.Model(make, inputs=inputs, loss=nn.functional.cross_entropy)
    made = ModelCase(model, draw(model, 1, 0)[0], 0)
    with isolate():
        module, drawn = made.build(), made.draw()
        expected = nn.functional.cross_entropy(module(drawn["input"]), drawn["target"])
        assert made.objective(made.call(module, drawn), drawn) == expected
