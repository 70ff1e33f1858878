"""What all judges of schedules have in common, on a healthy run and on several settings."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

PEAK, TOTAL, WARMUP = 1e-3, 100, 10
HEALTHY = {"shape": "warmup-decay", "peak": PEAK, "total": TOTAL, "warmup": WARMUP, "floor": 0.0}


def warmup_cosine(step: int) -> float:
    """Return the rate of a healthy schedule."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return PEAK * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


def healthy(change: Callable[[int, float], float] = lambda _, rate: rate) -> list[float]:
    """Return the rates of the healthy schedule, changed."""
    return [change(step, warmup_cosine(step)) for step in range(TOTAL)]


RUN_INVARIANTS = (
    "rate_is_finite_and_positive",
    "first_step_learns",
    "rate_changes_smoothly",
    "reported_rate_is_in_force",
    "warmup_rises",
    "warmup_reaches_peak",
    "peak_is_not_exceeded",
    "warmup_is_short",
    "decay_never_rises",
    "floor_is_kept",
    "horizon_matches_units",
)


@pytest.mark.parametrize("name", RUN_INVARIANTS)
def test_a_healthy_run_gives_nothing(name: str, judged, ticks) -> None:
    """A warmup and a cosine that keep all their promises are passed by every invariant."""
    assert judged(name, ticks(healthy()), **HEALTHY) == []


@pytest.mark.parametrize("name", RUN_INVARIANTS)
def test_what_is_not_promised_is_not_judged(name: str, judged, ticks) -> None:
    """A bare schedule of any shape without leaps gives nothing."""
    assert judged(name, ticks([1.0, 0.6, 0.7, 0.5, 0.9] * 20)) == []


@pytest.mark.parametrize("name", RUN_INVARIANTS)
@given(
    exponent=st.integers(-20, 20),
    at=st.integers(1, TOTAL - 1),
    factor=st.just(0.0) | st.floats(1e-3, 30.0),
)
def test_the_unit_of_the_rate_does_not_matter(
    name: str, exponent: int, at: int, factor: float, judged, ticks
) -> None:
    """A run and the same run at another scale, promises included, are judged alike."""
    scale = 2.0**exponent  # exact, so that no rounding tips a threshold
    rates = healthy(lambda step, rate: rate * factor if step >= at else rate)
    promises = {**HEALTHY, "floor": PEAK / 100}
    scaled = {**promises, "peak": PEAK * scale, "floor": PEAK / 100 * scale}
    once = [(f.summary, f.at) for f in judged(name, ticks(rates), **promises)]
    again = [(f.summary, f.at) for f in judged(name, ticks([r * scale for r in rates]), **scaled)]
    assert once == again


def test_a_run_that_is_not_sound_is_left_to_one_invariant(judged, ticks) -> None:
    """A nan is said once, not by every invariant that compares rates."""
    rates = healthy(lambda step, rate: math.nan if step == 50 else rate)
    said = [name for name in RUN_INVARIANTS if judged(name, ticks(rates), **HEALTHY)]
    assert said == ["rate_is_finite_and_positive"]


def test_each_case_is_judged_by_its_own_promises(judged, ticks) -> None:
    """What was drawn for one setting does not hold for another."""
    events = ticks([1.0, 0.5], case=0) + ticks([2.0, 0.5], case=1)
    assert judged("peak_is_not_exceeded", events, **{"peak@0": 1.0, "peak@1": 2.0}) == []
    (finding,) = judged("peak_is_not_exceeded", events, **{"peak@0": 1.0, "peak@1": 1.0})
    assert finding.event == events[2]


def test_cases_that_fail_alike_are_one_finding(judged, ticks) -> None:
    """Twenty settings with the same fault are reported once, at the first of them."""
    events = [tick for case in range(20) for tick in ticks([2.0, 1.0], case=case)]
    (finding,) = judged("peak_is_not_exceeded", events, peak=1.0)
    assert finding.event == events[0]
