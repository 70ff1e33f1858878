"""The band around a snapshot, and what a departure from it looks like."""

import random
from math import nan, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.curves.curve import Curve
from trainguard.curves.tolerance import ENVELOPES, ROUNDING, align, departure

STEPS = 40
BASE = tuple(3.0 / (1 + 0.1 * step) for step in range(STEPS))


def curve(values: tuple[float, ...], drift: float = 0.0, made: int = 0, **conditions: str) -> Curve:
    """Return a curve with the same drift at all steps."""
    steps = tuple(range(len(values)))
    own = (drift,) * len(values)
    return Curve("loss", steps, (tuple(values),), own, made or len(values), conditions)


def changed(by) -> Curve:
    """Return the base with each value changed by a share of it."""
    return curve(tuple(value * (1 + by(step)) for step, value in enumerate(BASE)))


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.floats(0, 1e-3), st.data())
def test_what_stays_in_the_band_is_no_departure(values, drift, data) -> None:
    """Anything up to 30 drifts and a rounding is allowed, at each step by itself."""
    band = ENVELOPES * drift + ROUNDING
    moves = data.draw(st.lists(st.floats(-0.99, 0.99), min_size=len(values), max_size=len(values)))
    moved = tuple(v * (1 + m * band) for v, m in zip(values, moves, strict=True))
    assert departure(curve(tuple(values), drift), curve(moved)) is None


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.floats(0, 1e-3), st.data())
def test_what_leaves_the_band_is_a_departure(values, drift, data) -> None:
    """The first step outside is told, whatever comes after it."""
    band = ENVELOPES * drift + ROUNDING
    at = data.draw(st.integers(0, len(values) - 1))
    scale = curve(tuple(values)).scales()[at]
    moved = [*values]
    moved[at] += 1.01 * band * scale
    found = departure(curve(tuple(values), drift), curve(tuple(moved)))
    assert found is not None
    assert (found.step, found.kept, found.found) == (at, values[at], moved[at])
    assert abs(found.size) > found.allowed


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("offset", lambda _: 0.02),
        ("offset", lambda step: 0.2 / (1 + step)),
        ("slope", lambda step: 1e-4 * step),
        ("slope", lambda step: 2e-8 * 1.5**step),
        ("jump", lambda step: 0.01 * (step >= 25)),
        ("jump", lambda step: 0.001 * max(0, step - 20)),
        ("noise", lambda step: 0.01 * sin(5 * step + 1)),
        ("noise", lambda step: random.Random(step).gauss(0, 1e-3)),
    ],
)
def test_the_kind_of_a_departure(kind: str, by) -> None:
    """What it looks like says what it may come from."""
    found = departure(curve(BASE), changed(by))
    assert found is not None
    assert found.kind == kind


def test_a_value_that_is_no_number_is_outside() -> None:
    """Nothing is in a band that it cannot be compared with."""
    found = departure(curve(BASE), curve((*BASE[:7], nan, *BASE[8:])))
    assert found is not None
    assert found.step == 7


def test_a_band_of_drift_is_wide_where_the_drift_was() -> None:
    """A difference late in a chaotic run is allowed, early it is not."""
    drift = tuple(1e-8 * 1.5**step for step in range(STEPS))
    kept = Curve("loss", tuple(range(STEPS)), (BASE,), drift, STEPS)
    assert departure(kept, changed(lambda step: 1e-3 * (step == STEPS - 1))) is None
    assert departure(kept, changed(lambda step: 1e-3 * (step == 3))) is not None


@pytest.mark.parametrize("made", [STEPS + 1, STEPS - 1])
def test_another_length_is_told_where_all_else_agrees(made: int) -> None:
    """A run that ended early, or went on, is not the one that was blessed."""
    values = (*BASE, 0.5)[:made]
    found = departure(curve(BASE), curve(values))
    assert found is not None
    assert (found.kind, found.kept, found.found) == ("length", STEPS, made)


def test_a_difference_goes_before_the_length() -> None:
    """Where both differ, the first step that differs is what helps."""
    found = departure(curve(BASE), curve(tuple(2 * value for value in BASE[:20])))
    assert found is not None
    assert found.kind == "offset"


def test_curves_without_a_common_step_are_of_another_length() -> None:
    """No step is compared, so that nothing can be said to agree."""
    kept = Curve("loss", (0, 2), ((1.0, 1.0),), (), 4)
    found = departure(kept, Curve("loss", (1, 3), ((1.0, 1.0),), (), 4))
    assert found is not None
    assert found.kind == "length"


def test_steps_that_one_run_skipped_are_left_out() -> None:
    """A gradient scaler may skip a step; the others are compared."""
    kept = Curve("loss", (0, 2, 3, 4), ((1.0, 2.0, 3.0, 4.0),), (), 5)
    found = Curve("loss", (0, 1, 3, 4), ((1.0, 9.0, 3.0, 4.0),), (), 5)
    assert departure(kept, found) is None


def test_the_conditions_that_differ_are_named() -> None:
    """Those that are known on both sides; the version of trainguard changes no number."""
    kept = curve(BASE, torch="2.9.1", threads="1", trainguard="0.1.0")
    found = departure(kept, curve(BASE[:3], torch="2.13.0", device="cpu", trainguard="0.2.0"))
    assert found is not None
    assert found.changed == (("torch", "2.9.1", "2.13.0"),)


def test_a_curve_of_zeros_has_a_band_too() -> None:
    """Against nothing but zeros there is no relative difference."""
    assert departure(curve((0.0, 0.0)), curve((0.0, 0.0))) is None
    found = departure(curve((0.0, 0.0)), curve((0.0, 1e-30)))
    assert found is not None
    assert found.step == 1


def test_two_curves_are_laid_over_each_other() -> None:
    """Each step that both have, with the difference relative to the snapshot."""
    both = align(curve((1.0, 2.0, 4.0), 1e-7), curve((1.0, 2.0, 5.0)))
    assert both.differences == (0.0, 0.0, 0.25)
    assert both.band == pytest.approx((4e-6,) * 3)
