"""Columns of a recorded run as curves."""

from math import nan

import pytest

from trainguard.curves.curve import curves, noun
from trainguard.events.curve import COLUMNS
from trainguard.events.loop import Step
from trainguard.events.trace import Trace


def step(index: int, **columns) -> Step:
    """Return a step with a loss that falls, unless told otherwise."""
    return Step(**{"step": index, "loss": 2.0 - index, "losses": (1.0,), "received": 4, **columns})


def test_a_column_is_a_curve() -> None:
    """Its steps and values, how many steps were made, and the conditions as texts."""
    conditions = {"torch": "2.13.0", "dtype": ("bfloat16", "float32"), "seed": 0}
    trace = Trace("train", (step(0), step(1)), conditions)
    (curve,) = curves(trace, "loss")
    assert (curve.column, curve.steps, curve.values, curve.made) == ("loss", (0, 1), (2.0, 1.0), 2)
    assert curve.conditions["dtype"] == "bfloat16 float32"
    assert curve.conditions["seed"] == "0"
    assert curve.conditions["device"] == ""


def test_each_optimizer_has_a_curve() -> None:
    """The one with the most steps goes by the name of the column."""
    steps = (step(0, optimizer="Adam"), step(0, optimizer="Adam#2"), step(1, optimizer="Adam#2"))
    first, second = curves(Trace("train", steps), "loss")
    assert (first.column, first.steps) == ("loss", (0, 1))
    assert (second.column, second.steps) == ("loss of Adam", (0,))
    assert noun(second.column) == "loss of Adam"


def test_a_value_that_is_no_number_is_kept_where_it_is_one_of_the_run() -> None:
    """A loss of nan is a loss; a step without a loss has none."""
    steps = (step(0), step(1, loss=nan), step(2, loss=nan, losses=()))
    (curve,) = curves(Trace("train", steps), "loss")
    assert curve.steps == (0, 1)
    assert not curve.finite


def test_a_step_that_a_scaler_skipped_is_left_out() -> None:
    """Its gradients were infinite on purpose."""
    (curve,) = curves(
        Trace("train", (step(0, norm=nan, skipped=True), step(1, norm=2.0))), "grad_norm"
    )
    assert curve.steps == (1,)


def test_what_is_not_known_gives_no_curve() -> None:
    """Updates are measured in some steps only, and perhaps in none."""
    assert curves(Trace("train", (step(0), step(1))), "update_norm") == ()
    assert curves(Trace("train"), "loss") == ()


def test_a_thinned_run_counts_all_its_steps() -> None:
    """The last step of a long run stands for those after it."""
    (curve,) = curves(Trace("train", (step(0), step(8, span=8))), "loss")
    assert curve.made == 16


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_has_a_noun(column: str) -> None:
    """Reports write it in words."""
    assert "_" not in noun(column)
