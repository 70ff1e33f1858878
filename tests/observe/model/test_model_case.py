"""The kernel of all probes: a declared model is built, fed, called, and its outputs are named."""

from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import trainguard as tg
from trainguard.core.settings import Settings
from trainguard.observe.model.cases import call, draw
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.model.observer import observe
from trainguard.observe.tools.isolation import isolate

X = tg.real("B 4", -1, 1)


def network(model: tg.Model, case: int = 0, count: int = 2) -> ModelCase:
    """Return a declared model at one of its structures."""
    return ModelCase(model, draw(model, count, 0)[case], case)


class Net(nn.Module):
    """A lazy layer with dropout, whose forward takes what it is given in four ways."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(width)
        self.dropout = nn.Dropout(0.5)
        self.seen: list[Any] = []

    def forward(self, x: Tensor, /, y: Tensor, *, scale: float = 1.0, **more: Tensor) -> Tensor:
        """Return the layer's output."""
        self.seen = [scale, sorted(more)]
        return self.dropout(self.layer(x + y)) * scale


def test_forward_is_fed_by_position_by_keyword_and_beyond() -> None:
    """A parameter of any kind gets its input, and the loss keeps its own."""
    made = network(
        tg.Model(
            lambda: Net(),  # noqa: PLW0108 a factory that does not tell what forward takes
            inputs={"x": X, "y": X, "scale": tg.choice(2.0), "extra": X, "target": X},
            loss=lambda output, target: (output - target[:, :3]).square(),
        )
    )
    with isolate():
        module, inputs = made.build(), made.draw()
        outputs = made.call(module, inputs)

    assert made.forward_names(module) == {"x", "y", "scale", "extra"}
    assert module.seen == [2.0, ["extra"]]
    assert outputs.tensors["output"].shape == (4, 3)
    assert made.objective(outputs, inputs).ndim == 0


def test_a_forward_of_starred_arguments_is_fed_in_order() -> None:
    """nn.Sequential and its like give their inputs no names."""

    class Starred(nn.Module):
        """Adds what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, *parts: Tensor) -> Tensor:
            """Return the layer's output for the first less the second."""
            return self.layer(parts[0] - parts[1])

    made = network(tg.Model(Starred, x=X, y=X))
    with isolate():
        module, inputs = made.build(), made.draw()
        found = made.call(module, inputs).tensors["output"]
        assert torch.equal(found, module.layer(inputs["x"] - inputs["y"]))


def test_a_seed_decides_the_weights_the_inputs_and_the_dropout() -> None:
    """The same seed gives the same of each, another seed another."""
    made = network(tg.Model(Net, x=X, y=X))
    with isolate():
        one, same, other = made.build(1), made.build(1), made.build(2)
        inputs = made.draw(1)
        assert torch.equal(one.layer.weight, same.layer.weight)
        assert not torch.equal(one.layer.weight, other.layer.weight)
        assert torch.equal(inputs["x"], made.draw(1)["x"])
        assert not torch.equal(inputs["x"], made.draw(2)["x"])
        outputs = [made.call(one, inputs, seed=s).tensors["output"] for s in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_a_factory_that_takes_a_seed_is_given_one() -> None:
    """One that seeds itself would otherwise build the same model each time."""

    def build(seed: int = 0) -> nn.Module:
        """Build a seeded model."""
        torch.manual_seed(seed)
        return nn.Linear(4, 2)

    made = network(tg.Model(build, input=X))
    with isolate():
        assert not torch.equal(made.build(1).weight, made.build(2).weight)


@pytest.mark.parametrize("factory", [False, True])
def test_a_given_module_stays_as_it_was(factory: bool) -> None:
    """Probes get copies, of one that a factory hands out again and again too."""
    given = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    model = tg.Model((lambda: given) if factory else given, input=X)
    observation = observe(model, "cpu", "float32", Settings())

    observation.trace("initial")
    observation.trace("backward")

    assert not given.training
    assert all(parameter.grad is None for parameter in given.parameters())
    assert all(torch.equal(before[name], t) for name, t in given.state_dict().items())


class Force(nn.Module):
    """A model whose output is the gradient of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the force on each particle."""
        x = x.detach().requires_grad_()
        energy = self.energy(x).square().sum()
        return torch.autograd.grad(energy, x, create_graph=self.training)[0]


def test_a_model_of_gradients_is_called_with_gradients() -> None:
    """Though the caller asks for none, and gets none."""
    made = network(tg.Model(Force, x=X))
    with isolate(), torch.no_grad():
        found = made.call(made.build(), made.draw()).tensors["output"]
        assert not torch.is_grad_enabled()
    assert not found.requires_grad
    assert float(found.abs().max()) > 0


def test_a_build_is_in_training_mode_and_has_no_gradient() -> None:
    """However the given module was left."""
    given = nn.Linear(4, 2).eval()
    given(torch.ones(1, 4)).sum().backward()
    with isolate():
        module = network(tg.Model(given, input=X)).build()
    assert module.training
    assert module.weight.grad is None


def test_lazy_layers_take_their_shape_from_the_first_call() -> None:
    """A built model is ready to be trained."""
    made = network(tg.Model(Net, x=X, y=X))
    with isolate():
        module = made.build()
    assert module.layer.weight.shape == (3, 4)
    assert module.training


def test_a_compiled_model_is_observed_as_it_was_written() -> None:
    """Compiling is a variant of its own, and names would differ."""
    made = network(tg.Model(lambda: torch.compile(nn.Linear(4, 2)), input=X))
    with isolate():
        assert [name for name, _ in made.build().named_parameters()] == ["weight", "bias"]


def test_the_first_cases_are_the_largest_and_the_smallest() -> None:
    """Four samples and two to eight of everything else where nothing is said."""
    model = tg.Model(Net, x=tg.real("B T 4", 0, 1), y=tg.real("B T 4", 0, 1))
    assert [dict(s.sizes) for s in draw(model, 2, 0)] == [{"B": 4, "T": 8}, {"B": 4, "T": 2}]


def test_every_value_of_a_choice_is_met() -> None:
    """Layers may be there for one of them only."""
    tasks = tg.choice("left", "right", "up", "down")
    model = tg.Model(lambda: Net(), inputs={"x": X, "y": X, "task": tasks})  # noqa: PLW0108
    met = {structure.arguments["task"] for structure in draw(model, 2, 0)}
    assert met == {"left", "right", "up", "down"}


def test_hyperparameters_are_drawn() -> None:
    """A factory is judged at several of its settings."""
    model = tg.Model(Net, x=X, y=X, vary={"width": st.integers(1, 9)})
    widths = {structure.hyperparameters["width"] for structure in draw(model, 6, 0)}
    assert len(widths) == 6


def test_inputs_are_drawn_from_their_domains() -> None:
    """Bounds may be sizes, and every element lies inside."""
    model = tg.Model(
        lambda: nn.Embedding(9, 2), input=tg.integer("B T", 3, "V-1"), sizes={"V": 9, "T": 50}
    )
    drawn = network(model).draw()["input"]
    assert drawn.shape == (4, 50)
    assert (int(drawn.min()), int(drawn.max())) == (3, 8)


class Losing(nn.Module):
    """A model that returns what it is told to beside its output."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.names = names

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return an output, a loss of 3 and an auxiliary one of 5, as far as they are asked for."""
        output = self.layer(x)
        zero = 0 * output.sum()
        every = {"logits": output, "loss": zero + 3, "balance": zero + 5}
        return {name: every[name] for name in self.names}


@pytest.mark.parametrize(
    ("names", "loss", "objective"),
    [
        (("logits", "loss", "balance"), 3.0, 3.0),
        (("loss", "balance"), 3.0, 3.0),
        (("logits", "balance"), 5.0, None),
        (("balance",), 5.0, 5.0),
        (("logits",), None, None),
    ],
)
def test_what_is_minimised(names: Any, loss: float | None, objective: float | None) -> None:
    """The model's own loss goes first; of outputs that are no loss, a random projection."""
    made = network(tg.Model(Losing, x=X, arguments={"names": names}))
    with isolate():
        inputs = made.draw()
        outputs = made.call(made.build(), inputs)
        own = made.loss(outputs, inputs)
        total, again = (made.objective(outputs, inputs).detach() for _ in range(2))
    assert own is None if loss is None else float(own.detach()) == loss
    assert float(total) == objective if objective is not None else float(total) not in (3.0, 5.0)
    assert torch.equal(total, again)


def test_low_precision_runs_under_autocast() -> None:
    """Parameters stay as they are; products are taken in the lower precision."""
    made = network(tg.Model(nn.Linear, input=X, arguments={"in_features": 4, "out_features": 2}))
    with isolate():
        module = made.build()
        outputs = made.call(module, made.draw(), autocast="bfloat16").tensors
    assert outputs["output"].dtype is torch.bfloat16
    assert module.weight.dtype is torch.float32


def test_double_precision_holds_for_parameters_and_inputs() -> None:
    """A model that is declared in float64 is judged in it."""
    model = tg.Model(nn.Linear(4, 2), input=X, dtypes="float64")
    observation = observe(model, "cpu", "float64", Settings())
    observation.trace("initial")
    made = observation._networks[0]
    with isolate():
        assert made.build().weight.dtype is made.draw()["input"].dtype is torch.float64


def test_a_finding_is_shown_with_the_call() -> None:
    """Inputs are written as code that draws alike."""
    model = tg.Model(
        Net,
        x=tg.real("B 4", -1, 1),
        y=tg.bins("B 4", -1, 1, 256),
        scale=tg.choice(2.0),
        arguments={"width": 5},
        name="subject",
    )
    observation = observe(model, "cpu", "float32", Settings())
    event = observation.trace("initial").events[0]
    found = observation.shrink(tg.Finding("it is so", event=event), lambda trace: iter(()))
    assert found.smallest == (
        "Net(width=5)(x=torch.empty(4, 4).uniform_(-1, 1), "
        "y=torch.empty(4, 4).uniform_(-1, 1), scale=2.0)"
    )


@pytest.mark.parametrize(
    ("padding", "written"),
    [
        (False, "torch.arange(5) < torch.tensor([[5], [4], [3], [1]])"),
        (True, "torch.arange(5) >= torch.tensor([[5], [4], [3], [1]])"),
        (0, "(torch.arange(5) < torch.tensor([[5], [4], [3], [1]])).long()"),
        (1.0, "(torch.arange(5) >= torch.tensor([[5], [4], [3], [1]])).float()"),
    ],
)
def test_a_mask_is_shown_with_padding_in_it(padding: Any, written: str) -> None:
    """Whatever marks it."""
    mask = tg.mask("B T", padding=padding)
    made = network(tg.Model(nn.Linear(4, 2), inputs={"input": mask}, sizes={"T": 5}))
    assert call(made, made.sizes).startswith("Linear.model(input=")
    pasted = call(made, made.sizes).removeprefix("Linear.model(input=")[:-1]
    assert pasted == written
    assert eval(pasted, {"torch": torch}).shape == (4, 5)
