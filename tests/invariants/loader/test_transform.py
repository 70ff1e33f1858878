"""What is said of a transform and its inverse."""

import pytest

from tests.invariants.loader.tried import judged, ranks, served

NAME = "transform_round_trips"


def trip(error: float, step: float, **more) -> list:
    """Write the events of one shape, quantised in even steps."""
    return [
        served("error", error, 1.0, **more),
        served("trip", error, step, **more),
        served("half", error, step / 2, **more),
    ]


def test_half_a_step_is_passed() -> None:
    """What is rounded to the nearest code comes back within half a step."""
    assert judged(NAME, [served("levels", 256, 262144), *trip(0.5, 1.0)]) == []


def test_rounding_of_the_half_step_is_passed() -> None:
    """Half a step of 16 bits is off by a little in float32."""
    assert judged(NAME, trip(0.5 * 1.015, 1.0)) == []


def test_a_whole_step_is_a_note() -> None:
    """Codes that are cut off come back up to a step too low."""
    (finding,) = judged(NAME, trip(0.99, 1.0, at="[0, 1], shape (2, 7)", detail="1 becomes 0.01"))
    assert finding.rank.value == "note"
    assert finding.measured == "0.99 (1 becomes 0.01)"
    assert finding.allowed.startswith("0.5, ")


def test_more_than_a_step_is_broken() -> None:
    """And then nothing is said of the half."""
    events = [served("levels", 256, 262144), *trip(1.1, 1.0)]
    (finding,) = judged(NAME, events)
    assert finding.rank.value == "broken"
    assert finding.allowed == "1, a step of the codes there"


def test_rounding_is_allowed_where_nothing_is_quantised() -> None:
    """The bound that the observer gives is the whole of what is allowed."""
    assert judged(NAME, [served("trip", 1e-6, 1e-5)]) == []
    (finding,) = judged(NAME, [served("trip", 1e-4, 1e-5)])
    assert finding.allowed == "1e-05, rounding"


def test_values_at_other_places_are_told_so() -> None:
    """The cause is another one where all values are there."""
    (finding,) = judged(NAME, [served("trip", 1.0, 1e-5, detail="0 becomes 1, moved")])
    assert "at other places" in finding.why
    assert "moved" not in finding.measured


@pytest.mark.parametrize("promise", ["tolerance", "limit:transform_round_trips"])
@pytest.mark.parametrize(("error", "found"), [(0.1, []), (0.11, ["broken"])])
def test_a_promised_tolerance_replaces_the_steps(
    promise: str, error: float, found: list[str]
) -> None:
    """The largest error counts, however coarse the codes are."""
    assert ranks(NAME, [served("levels", 3, 999), *trip(error, 1.0)], **{promise: 0.1}) == found


def test_few_levels_are_a_note() -> None:
    """Three values of a continuum are hardly meant."""
    assert ranks(NAME, [served("levels", 3, 262144), *trip(0.4, 1.0)]) == ["note"]


def test_another_shape_is_broken() -> None:
    """The message says which shape became which."""
    events = [served("shape", at="shape (2, 7)", detail="(2, 7) becomes (2, 8)")]
    (finding,) = judged(NAME, events)
    assert finding.measured == "(2, 7) becomes (2, 8)"


def test_numbers_that_are_not_finite_are_broken() -> None:
    """They are counted."""
    (finding,) = judged(NAME, [served("bad", 3, 14, at="[0, 1], shape (2, 7)")])
    assert finding.measured == "3 of 14 values not finite"


def test_a_nan_error_is_broken() -> None:
    """What cannot be compared is not within the tolerance."""
    assert ranks(NAME, [served("error", float("nan"), 1.0)], tolerance=0.1) == ["broken"]
