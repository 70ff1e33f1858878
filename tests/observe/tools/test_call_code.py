"""What is pasted into a prompt is the call that failed."""

from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import trainguard as tg
from trainguard.observe.tools import call_code
from trainguard.observe.tools.structure import Structure

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
values = st.floats(-1e4, 1e4) | st.floats() | st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e-30])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Draw tensors of every dtype that inputs have, some of them constant."""
    shape, dtype = draw(shapes), draw(st.sampled_from([*FLOATS, torch.int64, torch.bool]))
    elements = values if dtype.is_floating_point else st.integers(0, 2)
    count = torch.Size(shape).numel()
    flat = draw(st.lists(elements, min_size=count, max_size=count))
    if draw(st.booleans()):
        flat = flat[:1] * count
    return torch.tensor(flat, dtype=dtype).reshape(shape)


@given(tensors())
@example(torch.full((2,), torch.finfo(torch.float32).max))
@example(torch.full((2,), torch.finfo(torch.float16).min, dtype=torch.float16))
def test_a_pasted_tensor_is_the_tensor(tensor: Tensor) -> None:
    """The text evaluates to the same numbers, in the same dtype and shape."""
    text = call_code.tensor(tensor)
    back = eval(text, {"torch": torch})
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back.nan_to_num(7.0), tensor.nan_to_num(7.0))
    assert torch.equal(back.isnan(), tensor.isnan())
    assert text.isascii()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(2, 3), "torch.zeros((2, 3))"),
        (torch.ones(2, 3), "torch.full((2, 3), 1.)"),
        (torch.tensor([0.1, -20.0]), "torch.tensor([0.1, -20.])"),
        (torch.tensor(0.5), "torch.tensor(0.5)"),
        (torch.tensor([[1e-30]]), "torch.tensor([[1e-30]])"),
        (torch.tensor([3, 4]), "torch.tensor([3, 4])"),
        (torch.zeros(2, dtype=torch.int64), "torch.full((2,), 0)"),
        (torch.tensor([True, False]), "torch.tensor([True, False])"),
        (torch.tensor([torch.nan]), 'torch.tensor([float("nan")])'),
        (
            torch.tensor([1 / 3], dtype=torch.bfloat16),
            "torch.tensor([0.334], dtype=torch.bfloat16)",
        ),
        (torch.zeros(2, dtype=torch.float64), "torch.zeros((2,), dtype=torch.float64)"),
    ],
)
def test_a_tensor_is_written_shortly(tensor: Tensor, text: str) -> None:
    """As few digits as give the number back, and no list where one number says it all."""
    assert call_code.tensor(tensor) == text


def focal(logits, target, gamma=2.0):
    """Stand for a loss."""


class Margin(torch.nn.Module):
    """A module with a hyperparameter."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x):
        """Stand for a loss."""

    def extra_repr(self) -> str:
        """Show the margin."""
        return f"margin={self.margin}"


X = tg.real("B", -1, 1)
ONE = {"x": torch.ones(1)}


def written(function: object, structure: Structure, point: dict, **declared: object) -> str:
    """Write the call of a declared loss."""
    return call_code.call(tg.Loss(function, **declared), structure, point)


def test_a_call_of_a_function() -> None:
    """Every input by its name, in the order of declaration, arguments that are no tensors too."""
    point = {"target": torch.tensor([1]), "logits": torch.zeros(1, 2)}
    text = written(
        focal,
        Structure(arguments={"gamma": 0.5}),
        point,
        logits=tg.real("B C", -1, 1),
        gamma=st.floats(0, 1),
        target=tg.integer("B", 0, 1),
    )
    assert text == "focal(logits=torch.zeros((1, 2)), gamma=0.5, target=torch.tensor([1]))"


def test_a_call_of_a_module_and_of_a_factory() -> None:
    """A module is written as it shows itself, a factory with its hyperparameters."""
    assert written(Margin(0.2), Structure(), ONE, x=X) == "Margin(margin=0.2)(x=torch.tensor([1.]))"
    made = Structure(hyperparameters={"margin": 0.5})
    text = written(Margin, made, ONE, x=X, vary={"margin": st.just(0.5)})
    assert text == "Margin(margin=0.5)(x=torch.tensor([1.]))"


def test_a_call_of_what_has_no_name() -> None:
    """A lambda, a partial and a module of modules go by the subject's name."""
    many = Margin()
    many.inner = torch.nn.Sequential(torch.nn.ReLU())
    for function in (lambda x: x, partial(print, end=""), many):
        text = written(function, Structure(), ONE, x=X, name="my_loss")
        assert text == "my_loss(x=torch.tensor([1.]))"


def test_a_function_of_positions() -> None:
    """A callable without keywords is written without them."""

    def by_position(x, /):
        """Stand for a loss."""

    assert written(by_position, Structure(), ONE, x=X) == "by_position(torch.tensor([1.]))"
