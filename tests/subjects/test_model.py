"""What a declared model refuses, and how it reads what it is given."""

# forward takes its parameters by name, used or not

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from torch import nn

import trainguard as tg
from trainguard.subjects.model_inputs import forward_inputs

X = tg.real("B 4", -1, 1)
TOKENS = tg.integer("B T", 0, "V-1")


class Net(nn.Module):
    """A linear layer with an argument, and an input that is optional."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        """Return the layer's output."""
        return scale * self.layer(x)


class Anything(Net):
    """The same with a forward that takes any keyword."""

    def forward(self, x: Any, **more: Any) -> Any:
        """Return the layer's output."""
        return self.layer(x)


def error(output, target, weight=1.0):
    """Stand for a loss."""


def build(width: int = 3) -> Net:
    """Stand for a function that builds a model."""
    return Net(width)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (lambda: tg.Model(Net(), inputs={"x": X, "y": X}), "Net takes no input 'y'. Known: scale"),
        (lambda: tg.Model(Net, xx=X), "Net takes no input 'xx'. Did you mean 'x'"),
        (lambda: tg.Model(Net, scale=X), "forward of Net needs an input 'x', which tg.Model is no"),
        (lambda: tg.Model(Net, x=X, scale=1.0), r"Write tg.choice\(1.0\) to fix it"),
        (lambda: tg.Model(Net, x=X, initial_los=4), "Did you mean 'initial_loss'"),
        (lambda: tg.Model(Net, x=X, loss=tg.real("B", 0, 1)), "an input for its own option 'loss'"),
        (lambda: tg.Model(Net, x=X, loss=3), "tg.Model.loss=3. cannot be called"),
        (lambda: tg.Model(Net, x=X, loss=error), "The loss of Net needs 'target', which tg.Model"),
        (lambda: tg.Model(7, x=X), "tg.Model got 7, which cannot be called"),
        (lambda: tg.Model(build), "declares no input that is a tensor"),
        (
            lambda: tg.Model(Net(), x=X, arguments={"width": 3}),
            "takes no argument 'width' any more",
        ),
        (lambda: tg.Model(Net, x=X, arguments={"widht": 3}), "no argument 'widht'. Did you mean"),
        (lambda: tg.Model(Net, x=X, vary={"width": 3}), "is no Hypothesis strategy"),
        (
            lambda: tg.Model(Net, x=X, vary={"width": st.just(3)}, arguments={"width": 3}),
            "'width' both in vary and in arguments",
        ),
        (lambda: tg.Model(nn.Linear, input=X), "lacks 'in_features', which Linear cannot be built"),
        (lambda: tg.Model(Net, x=X, sizes={"T": 3}), "sizes has 'T'"),
        (lambda: tg.Model(Net, x=X, sizes={"B": (4, 2)}), "is no size"),
        (lambda: tg.Model(build, t=TOKENS), "the bound of an input has 'V'"),
        (
            lambda: tg.Model(build, x=tg.real("B T", 0, 1), longer={"T": 8, "U": 9}),
            "longer has 'U'",
        ),
        (
            lambda: tg.Model(build, x=tg.real("B T", 0, 1), sizes={"T": (2, 9)}, longer={"T": 9}),
            "is not longer than",
        ),
        (lambda: tg.Model(Net, x=X, causal="T"), "causal has 'T'"),
        (lambda: tg.Model(Net, x=X, padding="mask"), "padding has 'mask'"),
        (lambda: tg.Model(Net, x=X, dtypes="bfloat61"), "Did you mean 'bfloat16'"),
        (lambda: tg.Model(Net, x=X, dtypes=()), "names no dtype"),
        (lambda: tg.Model(Net, x=X, classes=1), "classes=1. cannot be"),
        (lambda: tg.Model(Net, x=X, classes=3, initial_loss=1.1), "twice. Keep one"),
        (lambda: tg.Model(Net, x=X, initial_loss=math.inf), "initial_loss=inf. cannot be"),
        (lambda: tg.Model(Net, x=X, initial_range=(3, -3)), "is no range"),
        (lambda: tg.Model(Net, x=X, initial_range={"output": (1, 1)}), "is no range"),
        (lambda: tg.Model(Net, x=X, initial_range=(1, 2, 3)), "is no range"),
        (
            lambda: tg.Model(Net, x=X, components={"means": "K"}),
            r"components=...\) has 'means': 'K'",
        ),
        (lambda: tg.Model(Net, x=X, frozen=("",)), "is no list of globs"),
        (lambda: tg.Model(Net, x=X, unused=(3,)), "is no list of globs"),
        (lambda: tg.Model(Net, x=X, checkpoint=True), "checkpoint=True. cannot be called"),
        (
            lambda: tg.Model(Net, x=X, allow={"outputs_finite": "why"}),
            "Did you mean 'outputs_are_f",
        ),
        (lambda: tg.Model(Net, x=X, timeout=0), "leaves no time"),
    ],
)
def test_what_cannot_be_meant_is_refused(declared: Any, words: str) -> None:
    """One sentence names the value, one the way out."""
    with pytest.raises(tg.DeclarationError, match=words):
        declared()


@pytest.mark.parametrize(
    "declared",
    [
        lambda: tg.Model(Net, x=X),
        lambda: tg.Model(Net(), x=X, scale=st.floats(1, 2)),
        lambda: tg.Model(Net, x=X, scale=tg.choice(1.0, 2.0), arguments={"width": 2}),
        lambda: tg.Model(build, x=X, anything=X),
        lambda: tg.Model(Net, x=X, target=X, loss=error),
        lambda: tg.Model(Net, x=X, target=X, weight=X, loss=error),
        lambda: tg.Model(Net, x=X, target=X, loss=nn.MSELoss()),
        lambda: tg.Model(partial(Net), x=X, arguments={"width": 3}),
        lambda: tg.Model(nn.LSTM, input=X, arguments={"input_size": 4, "hidden_size": 4}),
        lambda: tg.Model(build, t=TOKENS, sizes={"V": 65}, longer={"T": 64}, causal="T"),
    ],
)
def test_what_can_be_meant_is_taken(declared: Any) -> None:
    """Classes, functions and modules, with and without a loss."""
    assert declared().family == "model"


def test_a_module_is_no_factory() -> None:
    """What has parameters already is used as it is, and copied."""
    assert tg.Model(Net(), x=X).is_module
    assert not tg.Model(Net, x=X).is_module
    assert not tg.Model(build, x=X).is_module


def test_promises_are_told_by_the_names_that_invariants_need() -> None:
    """What is promised decides what is judged."""
    plain = tg.Model(Net, x=tg.real("N 4", -1, 1))
    rich = tg.Model(
        Net, x=X, target=X, loss=error, classes=65, initial_range=(-3, 3), components="output"
    )

    assert plain.promise_names == set()
    assert rich.promise_names == {"batch", "loss", "initial_loss", "initial_range", "components"}


def test_the_header_has_the_promises_in_plain_values() -> None:
    """Classes become the loss of a guess, one range that of all outputs."""
    made = tg.Model(Net, x=X, target=X, loss=error, classes=65, initial_range=(-3, 3))

    assert made.promises["initial_loss"] == pytest.approx(4.174, abs=1e-3)
    assert made.promises["range:*"] == (-3, 3)


@pytest.mark.parametrize(
    ("model", "loss", "names", "expected"),
    [
        (Net, error, ("x", "target"), {"x"}),
        (Net(), error, ("x", "scale", "weight"), {"x", "scale"}),
        (Anything, error, ("x", "target", "extra"), {"x", "extra"}),
        (Anything, None, ("x", "target"), {"x", "target"}),
        (build, error, ("x", "target"), {"x"}),
    ],
)
def test_what_forward_is_fed(model: Any, loss: Any, names: Any, expected: set[str]) -> None:
    """A name that forward does not take by itself is the loss's."""
    assert forward_inputs(model, loss, names) == expected


def test_the_place_of_the_declaration_is_kept() -> None:
    """A report can show where the model was declared."""
    assert tg.Model(Net, x=X).file == __file__


@pytest.mark.parametrize(("given", "name"), [(Net, "Net"), (Net(), "Net"), (build, "build")])
def test_a_model_is_called_as_its_code_is(given: Any, name: str) -> None:
    """Until it is collected under the name of its variable."""
    assert tg.Model(given, x=X).name == name
