"""The judges of the gradient's truth: alive, continuous, the slope of the value."""

import math

import pytest

from trainguard.core.finding import Rank

DIFFERENCE = "gradient_matches_finite_difference"


@pytest.mark.parametrize(("label", "at"), [("whole", "all inputs"), ("input", "x[1]")])
def test_a_dead_gradient(label: str, at: str, sample, judged, broken) -> None:
    """A plateau is broken where the loss can fall by more than a thousandth of 1 + |loss|."""
    low = sample("plateau", 3e-3, reference=2.0, label=label, index=(1,))
    high = sample("plateau", 3.1e-3, reference=2.0, label=label, index=(1,))
    assert not broken("gradient_is_alive", low)
    (finding,) = judged("gradient_is_alive", high)
    assert (finding.rank, finding.at) == (Rank.BROKEN, at)
    assert (finding.measured, finding.allowed) == (
        "gradient 0, while the loss can fall by 0.0031",
        "a gradient wherever it can fall by more than 0.003",
    )


def test_a_plateau_with_a_limit(sample, broken) -> None:
    """The subject's own limit replaces the factor of 1 + |loss|."""
    dead = sample("plateau", 0.5, reference=0.0, label="whole")
    assert broken("gradient_is_alive", dead)
    assert not broken("gradient_is_alive", dead, limit__gradient_is_alive=0.6)


def test_where_all_is_dead_it_is_said_once(sample, judged) -> None:
    """A plateau of the whole loss covers those of its inputs."""
    plateaus = [sample("plateau", 1.0, reference=0.0, label=w) for w in ("input", "whole")]
    (finding,) = judged("gradient_is_alive", *plateaus)
    assert finding.summary == "every gradient of `nll` is dead"


def test_an_input_that_no_gradient_reaches_is_a_note(sample, judged) -> None:
    """It is one at every point only, and its plateaus are not told again."""
    reached = sample("unreached", 0.0, bad=8, points=9)
    never = sample("unreached", 0.0, bad=9, points=9)
    dead = sample("plateau", 1.0, reference=0.0, label="input")
    assert [f.rank for f in judged("gradient_is_alive", reached, dead)] == [Rank.BROKEN]
    (note,) = judged("gradient_is_alive", never, dead)
    assert (note.rank, note.at) == (Rank.NOTE, "x")


@pytest.mark.parametrize(
    ("jump", "reference", "scale", "expected"),
    [
        (2.9e-3, 2.0, 0.0, False),
        (3.1e-3, 2.0, 0.0, True),
        (0.5, 0.0, 0.06, False),
        (0.7, 0.0, 0.06, True),
    ],
    ids=["small", "large", "steep", "a jump on a slope"],
)
def test_jumps(jump: float, reference: float, scale: float, expected: bool, sample, broken) -> None:
    """A jump is held against the loss and against what the loss moves on both sides of it."""
    one = sample("jump", jump, reference=reference, scale=scale)
    assert broken("gradient_is_continuous", one) is expected


def test_a_jump_with_a_limit(sample, broken) -> None:
    """The subject's own limit replaces the whole allowance."""
    one = sample("jump", 0.5, reference=0.0)
    assert broken("gradient_is_continuous", one)
    assert not broken("gradient_is_continuous", one, limit__gradient_is_continuous=0.6)


@pytest.mark.parametrize(
    ("autograd", "slope", "doubt", "expected"),
    [
        (1.0, 1.00009, 0.0, False),
        (1.0, 1.0002, 0.0, True),
        (1000.0, 1000.09, 0.0, False),
        (1000.0, 1000.2, 0.0, True),
        (1.0, 2.0, math.inf, False),
        (1.0, 2.0, 0.5, True),
    ],
    ids=["near", "far", "near and large", "far and large", "in doubt", "beyond its doubt"],
)
def test_differences(
    autograd: float, slope: float, doubt: float, expected: bool, sample, broken
) -> None:
    """The two slopes agree within 1e-4 of the larger scale, plus the difference's own doubt."""
    one = sample("difference", autograd, reference=slope, scale=doubt, label="custom")
    assert broken(DIFFERENCE, one) is expected
    assert not broken(DIFFERENCE, one, limit__gradient_matches_finite_difference=2.0)


def test_a_difference_of_own_operations_is_a_note(sample, judged) -> None:
    """Without a custom backward, a detach may be meant."""
    one = sample("difference", 1.0, reference=2.0, label="own")
    assert [f.rank for f in judged(DIFFERENCE, one)] == [Rank.NOTE]
