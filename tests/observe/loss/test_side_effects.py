"""What a call does besides returning a loss."""

import random
import time
import warnings

import numpy as np
import pytest
import torch

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.observe.loss.side_effects import SideEffects, conduct
from trainguard.observe.tools.isolation import isolate
from trainguard.observe.tools.structure import Structure

SIZES = ({"B": 1, "D": 1}, {"B": 2, "D": 3})
INPUTS = {"x": tg.real("B D", -1, 1), "t": tg.real("B D", -1, 1, grad=False)}
own_generator = np.random.default_rng()


def conducted(function: object, **declared: object) -> SideEffects:
    """Watch a loss of two inputs at two structures."""
    structures = [Structure(dict(sizes)) for sizes in SIZES]
    with isolate():
        return conduct(tg.Loss(function, **INPUTS, **declared), structures, "cpu", torch.float32)


def seen(function: object) -> list[tuple[str, str, str]]:
    """Return what is seen of a loss besides its value."""
    return [(s.quantity, s.input, s.label) for s in conducted(function).samples]


def square(x, t):
    """Return a loss in which everything holds."""
    return (x - t).square().sum()


def after(edit: object) -> object:
    """Return a loss that does something else before it returns."""

    def loss(x, t):
        edit(x, t)
        return square(x, t)

    return loss


def test_a_quiet_call() -> None:
    """A loss that only returns leaves nothing to tell, and its calls can be pasted."""
    found = conducted(square)
    assert (found.samples, found.protect) == ((), False)
    assert found.calls[0].startswith("square(x=torch.tensor([[0.")
    assert len(found.calls) == 2


EDITS = {
    "in place": (lambda x, t: t.mul_(2), "t"),
    "a gradient input": (lambda x, t: x.clamp_(-0.5, 0.5), "x"),
    "without effect": (lambda x, t: t.clamp_(-5, 5), "t"),
    "through .data": (lambda x, t: x.data.mul_(2), "x"),
    "through a view": (lambda x, t: t[:, 0].zero_(), "t"),
    "the shape": (lambda x, t: t.unsqueeze_(0), "t"),
    "in a larger batch only": (lambda x, t: len(t) > 1 and t.sub_(t.mean(0)), "t"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_input(name: str) -> None:
    """An edit is seen whatever way it takes, and later calls are handed copies."""
    edit, place = EDITS[name]
    found = conducted(after(edit))
    assert [(s.quantity, s.input) for s in found.samples] == [("mutated", place)]
    assert found.protect


def test_several_edited_inputs() -> None:
    """Each edited input is told."""
    assert seen(after(lambda x, t: (x.mul_(2), t.mul_(2)))) == [
        ("mutated", "x", ""),
        ("mutated", "t", ""),
    ]


CHANGES = {
    "torch.get_default_dtype()": lambda *_: torch.set_default_dtype(torch.float64),
    "torch.are_deterministic_algorithms_enabled()": (
        lambda *_: torch.use_deterministic_algorithms(True)
    ),
    "torch.get_num_threads()": lambda *_: torch.set_num_threads(3),
    "torch.backends.cudnn.benchmark": lambda *_: setattr(torch.backends.cudnn, "benchmark", True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting(name: str) -> None:
    """A setting is told once, with its two values, however many calls change it."""
    ((quantity, place, label),) = seen(after(CHANGES[name]))
    assert (quantity, place) == ("changed", name)
    assert label.startswith("from ")


def test_gradients_switched_off() -> None:
    """A loss that returns and leaves gradients off is told so; the next call has them again."""

    def off(x, t):
        made = square(x, t)
        torch.set_grad_enabled(False)
        return made

    assert seen(off) == [("changed", "torch.is_grad_enabled()", "from True to False")]


SEEDS = {
    "torch": lambda *_: torch.manual_seed(0),
    "numpy.random": lambda *_: np.random.seed(0),
    "random": lambda *_: random.seed(0),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seeded_stream(name: str) -> None:
    """A stream that is the same after every call was seeded."""
    assert seen(after(SEEDS[name])) == [("reseeded", name, "")]


@pytest.mark.parametrize(
    "draw",
    [
        lambda *_: (torch.rand(3), np.random.rand(3), random.random()),
        lambda *_: torch.rand(3, generator=torch.Generator().manual_seed(0)),
        lambda *_: np.random.default_rng(0).random(),
    ],
)
def test_drawing_is_no_seeding(draw: object) -> None:
    """A loss may draw, from the global streams and from generators of its own."""
    assert seen(after(draw)) == []


def test_a_borrowed_stream() -> None:
    """A stream that is forked and given back was not seeded."""

    def borrow(*_: object) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)

    assert seen(after(borrow)) == []


def test_printing_and_warning() -> None:
    """The first line and the first warning are told, once."""
    assert seen(after(lambda *_: print("a\nb"))) == [("printed", "", "a")]
    assert seen(after(lambda *_: warnings.warn("old", FutureWarning, stacklevel=1))) == [
        ("warned", "", "FutureWarning: old")
    ]


@pytest.mark.parametrize(
    "noise",
    [own_generator.random, lambda: time.perf_counter_ns() % 10**6, iter(range(99)).__next__],
    ids=["a generator of its own", "the clock", "a counter"],
)
def test_another_value_the_second_time(noise: object) -> None:
    """A value that follows from neither inputs nor seed is a fault, with the call that shows it."""
    with pytest.raises(SubjectError, match="different values for the same inputs") as caught:
        conducted(lambda x, t: square(x, t) + noise())
    assert "<lambda>" in caught.value.call


def test_another_shape_the_second_time() -> None:
    """A loss of another shape each time is no crash of ours."""
    lengths = iter(range(1, 9))
    with pytest.raises(SubjectError, match="different values"):
        conducted(lambda x, t: square(x, t).expand(next(lengths)))


def test_nan_both_times_is_the_same() -> None:
    """A loss that is nan is judged elsewhere."""
    assert seen(lambda x, t: square(x, t) * torch.nan) == []


def test_a_detached_loss() -> None:
    """A loss without a gradient at some structure is a fault, with the call of that structure."""
    with pytest.raises(SubjectError, match="detached from its inputs") as caught:
        conducted(lambda x, t: square(x, t) if len(x) == 1 else torch.zeros(()))
    assert caught.value.call.count("[") >= 3
