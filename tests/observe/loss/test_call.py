"""What a component may return, and what is said where it returns something else."""

from collections import namedtuple

import pytest
import torch
from hypothesis import strategies as st

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.observe.loss.call import LossCase
from trainguard.observe.tools.structure import Structure

Parts = namedtuple("Parts", ["kl", "pixels"])
X = tg.real("B", -1, 1)
POINT = {"x": torch.tensor([1.0, 2.0])}


def component(function: object, structure: Structure | None = None, **declared: object) -> LossCase:
    """Return the component of a loss of one input."""
    subject = tg.Loss(function, x=X, **declared)
    return LossCase(subject, structure or Structure(), "cpu", torch.float32)


TWO = {"components": ("kl", "pixels")}
SEVERAL = {
    "a dict": (lambda x: {"pixels": x.sum(), "kl": x.mean(), "other": None}, TWO, 4.5),
    "a tuple": (lambda x: (x.sum(), x.mean()), TWO, 4.5),
    "a list": (lambda x: [x.sum(), x.mean()], TWO, 4.5),
    "a named tuple": (lambda x: Parts(x.sum(), x.mean()), TWO, 4.5),
    "vectors": (lambda x: (x, x.mean()), TWO, 4.5),
    "a total first": (lambda x: (x.prod(), x.sum(), x.mean()), {**TWO, "total": "loss"}, 2.0),
    "a total in a dict": (
        lambda x: {"kl": x.sum(), "loss": x.prod(), "pixels": x.sum()},
        {**TWO, "total": "loss"},
        2.0,
    ),
    "a part as the total": (lambda x: (x.prod(), x.sum()), {**TWO, "total": "kl"}, 2.0),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_parts(name: str) -> None:
    """Parts have their names, and what is minimised is the total, or else their sum."""
    function, declared, total = SEVERAL[name]
    made = component(function, **declared)
    assert float(made.total(POINT)) == total
    assert {"kl", "pixels"} <= made.parts(POINT).keys()


WRONG = {
    "None": (lambda x: None, {}, "it returned None, not a tensor"),
    "a word": (lambda x: "nan", {}, "it returned the str 'nan', not a tensor"),
    "a long word": (lambda x: "n" * 99, {}, "it returned the str '" + "n" * 39 + ", not a tensor"),
    "a number": (lambda x: 1 / 3, {}, "it returned the float 0.3333, not a tensor"),
    "an integer": (lambda x: x.long(), {}, "its loss is a tensor of int64"),
    "a truth": (lambda x: x > 0, {}, "its loss is a tensor of bool"),
    "complex": (lambda x: x * 1j, {}, "its loss is a tensor of complex64"),
    "an integer part": (
        lambda x: (x.sum().long(), x.sum()),
        TWO,
        "its part 'kl' is a tensor of int64",
    ),
    "a None part": (lambda x: {"kl": None, "pixels": x.sum()}, TWO, "its part 'kl' is None"),
    "undeclared parts": (
        lambda x: {"kl": x.sum(), "pixels": x.sum()},
        {},
        "it returned several parts, kl, pixels, and none is declared",
    ),
    "an undeclared tuple": (
        lambda x: (x.sum(), x.sum()),
        {},
        "it returned a tuple of 2 parts, and 0 are named",
    ),
    "a missing part": (
        lambda x: {"kl": x.sum()},
        TWO,
        "it returned no part 'pixels', only kl",
    ),
    "an empty dict": (lambda x: {}, TWO, "it returned no part 'kl'"),
    "a short tuple": (
        lambda x: (x.sum(),),
        TWO,
        "it returned a tuple of 1 parts, and 2 are named",
    ),
    "a promised number": (
        lambda x: x,
        {"reduction": "sum"},
        "its loss has the shape (2,), and reduction='sum' promises a single number",
    ),
    "a promised stack": (
        lambda x: x.sum(),
        {"reduction": "none"},
        "its loss is a single number, and reduction='none' promises one for each sample",
    ),
    "an exception": (lambda x: 1 // 0, {}, "it raised ZeroDivisionError: integer division*"),
    "an exit": (lambda x: exit("done"), {}, "it raised SystemExit: done"),
    "no words": (lambda x: [][0:1].pop(), {}, "it raised IndexError: pop from empty list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_loss(name: str) -> None:
    """Each has a sentence of its own, and a way out."""
    function, declared, sentence = WRONG[name]
    with pytest.raises(SubjectError) as caught:
        component(function, **declared).total(POINT)
    told = caught.value.sentence
    assert told.startswith(sentence[:-1]) if sentence.endswith("*") else told == sentence
    assert caught.value.remedy


def test_an_exception_without_words() -> None:
    """The name of an exception is enough."""

    def bare(x):
        raise ValueError

    with pytest.raises(SubjectError) as caught:
        component(bare).total(POINT)
    assert caught.value.sentence == "it raised ValueError"
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_factory() -> None:
    """With `vary` the function makes the loss; one that makes none is told so."""
    vary = {"vary": {"scale": st.just(3.0)}}
    structure = Structure(hyperparameters={"scale": 3.0})
    made = component(lambda scale: lambda x: scale * x.sum(), structure, **vary)
    assert float(made.total(POINT)) == 9.0
    with pytest.raises(SubjectError, match="its factory returned the float 3, which cannot be"):
        component(lambda scale: scale, structure, **vary)
    with pytest.raises(SubjectError, match="it raised ZeroDivisionError"):
        component(lambda scale: 1 // 0, structure, **vary)


class Scaled(torch.nn.Module):
    """A module with a parameter and a count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))
        self.calls = 0

    def forward(self, x):
        """Return the weighted sum."""
        self.calls += 1
        return (self.weight * x).sum()


def test_a_module_is_copied() -> None:
    """A module is brought to the dtype of the inputs as a copy: the team's own stays as it is."""
    module = Scaled()
    subject = tg.Loss(module, x=X)
    made = LossCase(subject, Structure(), "cpu", torch.float64)
    assert made.total({"x": torch.ones(2, dtype=torch.float64)}).dtype is torch.float64
    assert (module.weight.dtype, module.calls) == (torch.float32, 0)


def test_a_function_of_positions_is_called_in_order() -> None:
    """Where no keywords are taken, inputs are passed in the order of their declaration."""

    def by_position(a, b, /):
        return (a - 2 * b).sum()

    subject = tg.Loss(by_position, a=tg.real("B", 0, 1), b=tg.choice(3))
    made = LossCase(subject, Structure(arguments={"b": 3}), "cpu", torch.float32)
    assert float(made.total({"a": torch.ones(1)})) == -5.0


def test_every_call_is_seeded() -> None:
    """Two calls with one seed draw the same numbers."""
    made = component(lambda x: x.sum() * torch.rand(()))
    assert float(made.total(POINT, 1)) == float(made.total(POINT, 1)) != float(made.total(POINT, 2))


def test_a_changed_setting_is_put_back_at_once() -> None:
    """What a call changes is noted and undone, also where the call raises."""

    def double(x):
        torch.set_default_dtype(torch.float64)
        return x.sum()

    made = component(double)
    made.total(POINT)
    assert torch.get_default_dtype() is torch.float32
    assert made.changed == [("torch.get_default_dtype()", torch.float32, torch.float64)]


def test_a_protected_component_edits_copies() -> None:
    """Where a component edits its inputs, what it is handed is a copy."""
    point = {"x": torch.ones(2)}
    made = component(lambda x: x.mul_(3).sum())
    made.protect = True
    assert float(made.total(point)) == 6.0
    assert torch.equal(point["x"], torch.ones(2))
