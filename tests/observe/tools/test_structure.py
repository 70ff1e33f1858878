"""Structures: sizes, arguments and hyperparameters, the smallest first, the same in every run."""

import pytest
from hypothesis import strategies as st

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.observe.tools.structure import Structure, draw, smallest

X = tg.real("B T", -1, 1)


def loss(**declared: object) -> tg.Loss:
    """Declare a loss that is never called."""
    return tg.Loss(lambda **inputs: None, **declared)


def test_the_smallest_comes_first() -> None:
    """The first structure is as small as the declaration admits; all are different."""
    drawn = draw(loss(x=X), 10, seed=0)
    assert drawn[0].sizes == {"B": 1, "T": 1}
    assert 5 <= len(drawn) == len({tuple(s.sizes.items()) for s in drawn}) <= 10
    assert all(1 <= size <= 4 for s in drawn for size in s.sizes.values())


def test_a_seed_draws_the_same() -> None:
    """Structures follow from the seed alone."""
    subject = loss(x=X, flag=tg.choice("a", "b"), scale=st.floats(0, 1))
    assert draw(subject, 8, seed=3) == draw(subject, 8, seed=3)
    assert draw(subject, 8, seed=3) != draw(subject, 8, seed=4)


def test_declared_sizes_are_kept() -> None:
    """A size may be fixed or a range, and a size that only bounds an input is drawn as well."""
    subject = loss(x=X, y=tg.integer("B C", 0, "C-1"), sizes={"B": 3, "T": (5, 7)})
    drawn = draw(subject, 20, seed=0)
    assert {s.sizes["B"] for s in drawn} == {3}
    assert {s.sizes["T"] for s in drawn} == {5, 6, 7}
    assert {s.sizes["C"] for s in drawn} == {1, 2, 3, 4}


def test_there_may_be_only_one() -> None:
    """A declaration with nothing to draw has one structure, however many are asked for."""
    assert draw(loss(x=tg.real("3", -1, 1)), 10, seed=0) == [Structure({}, {}, {})]


def test_arguments_and_hyperparameters() -> None:
    """Choices that are no tensors, strategies and `vary` are drawn; tensors are not."""
    subject = loss(
        x=X,
        sign=tg.choice(-1.0, 1.0, shape="B"),
        inputs={"reduction": tg.choice("mean", "sum")},
        margin=st.floats(0.5, 1),
        vary={"gamma": st.integers(1, 3)},
    )
    drawn = draw(subject, 30, seed=0)
    assert all(s.arguments.keys() == {"reduction", "margin"} for s in drawn)
    assert {s.arguments["reduction"] for s in drawn} == {"mean", "sum"}
    assert all(0.5 <= s.arguments["margin"] <= 1 for s in drawn)
    assert {s.hyperparameters["gamma"] for s in drawn} == {1, 2, 3}


def test_the_smallest_that_fails() -> None:
    """The search ends at the smallest structure to which there is an objection."""
    subject, known = loss(x=X, vary={"gamma": st.integers(0, 99)}), Structure({"B": 4, "T": 4})
    found = smallest(
        subject, lambda s: s.sizes["T"] > 1 and s.hyperparameters["gamma"] > 9, known, 200, seed=0
    )
    assert (found.sizes, found.hyperparameters) == ({"B": 1, "T": 2}, {"gamma": 10})


def test_a_structure_that_is_not_found_again() -> None:
    """Where nothing drawn fails, the known one stays."""
    known = Structure({"B": 4, "T": 4})
    assert smallest(loss(x=X), lambda _: False, known, 10, seed=0) is known


def test_nothing_can_be_drawn() -> None:
    """Strategies that hold nothing are told as what is wrong with the declaration."""
    never = st.integers(0, 9).filter(lambda _: False)
    with pytest.raises(SubjectError, match="no value of its arguments can be drawn"):
        draw(loss(x=X, k=never), 5, seed=0)


def test_a_strategy_that_raises() -> None:
    """What a strategy of the declaration raises is the subject's fault, traceback and all."""
    wrong = st.integers(0, 9).map(lambda k: 1 // (k - k))
    with pytest.raises(
        SubjectError, match="drawing its arguments raised ZeroDivisionError"
    ) as told:
        draw(loss(x=X, k=wrong), 5, seed=0)
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_other_sizes_for_a_structure() -> None:
    """A structure of other sizes keeps everything else."""
    known = Structure({"B": 4, "T": 2}, {"a": 1}, {"b": 2})
    assert known.with_sizes(B=1) == Structure({"B": 1, "T": 2}, {"a": 1}, {"b": 2})
