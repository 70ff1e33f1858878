"""The judges of the sweep: finite values, finite and bounded gradients."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("name", ["value", "gradient"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found(name: str, bad: float, sample, judged) -> None:
    """Nan and both infinities are found, with how many points were like it."""
    one = sample(name, bad, bad=3, points=9, index=(0, 2))
    (finding,) = judged(f"{name}_is_finite", sample(name, 1.0), one)
    assert finding.measured == f"{bad:.4g}  (3 of 9 points)"
    assert finding.at == ("x[0, 2]" if name == "gradient" else "")
    assert finding.why


@given(number=finite)
def test_finite_numbers_are_finite(number: float, sample, broken) -> None:
    """However large a number is, the finite judges let it pass."""
    assert not broken("value_is_finite", sample("value", number))
    assert not broken("gradient_is_finite", sample("gradient", number))


@pytest.mark.parametrize(
    ("promises", "allowed"),
    [
        ({}, 1e4),
        ({"magnitude__x": 0.1}, 1e4),
        ({"magnitude__x": 20.0}, 2e5),
        ({"magnitude__x": 20.0, "limit__gradient_is_bounded": 7.0}, 7.0),
    ],
    ids=["undeclared", "below one", "declared", "own limit"],
)
def test_gradient_is_bounded(promises: dict, allowed: float, sample, broken) -> None:
    """The bound grows with the declared magnitude, and the subject's own limit replaces it."""
    name = "gradient_is_bounded"
    assert not broken(name, sample("largest_gradient", allowed), **promises)
    assert broken(name, sample("largest_gradient", math.nextafter(allowed, math.inf)), **promises)


@pytest.mark.parametrize(("row", "word"), [((0.0, 0.0), "no direction"), ((0.0, 1.0), "clamp")])
def test_vectors_of_zeros_have_a_cause_of_their_own(row, word: str, sample, judged) -> None:
    """A division by a norm explodes where that is zero, which no clamp of an exp mends."""
    point = (("x", ((1.0, 1.0), row)),)
    one = sample("largest_gradient", 1e8, index=(1, 0), point=point)
    (finding,) = judged("gradient_is_bounded", one)
    assert word in finding.why


@given(size=st.floats(0, 1e4))
def test_a_small_gradient_is_bounded(size: float, sample, broken) -> None:
    """What is at most 1e4 explodes nowhere, whatever was declared."""
    assert not broken("gradient_is_bounded", sample("largest_gradient", size), magnitude__x=3.0)
