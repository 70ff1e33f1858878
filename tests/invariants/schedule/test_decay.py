"""The judges of the decay, its floor and its horizon."""

import math
from collections.abc import Callable

import pytest

TOTAL = 100


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("warmup-decay", ["broken"]),
        ("one-cycle", ["broken"]),
        ("restarts", []),
        ("plateau", ["broken"]),
    ],
)
def test_a_rise_after_the_decay_has_begun(shape: str, expected: list[str], ranks) -> None:
    """A rise is a fault of the shapes that only fall."""
    assert ranks("decay_never_rises", [1.0, 0.5, 0.4, 0.5], shape=shape) == expected


def test_a_warmup_that_goes_on_is_no_restart(ranks) -> None:
    """A rate that has never fallen does not rise again, whatever warmup was promised."""
    rates = [step / 50 for step in range(1, 51)]
    assert ranks("decay_never_rises", rates, shape="warmup-decay", warmup=5) == []


@pytest.mark.parametrize(("low", "expected"), [(0.0995, []), (0.09, ["broken"])])
def test_the_floor_is_kept_to_one_percent(low: float, expected: list[str], ranks) -> None:
    """The floor holds after the warmup, which begins below it."""
    assert ranks("floor_is_kept", [0.01, 1.0, low, 0.1], floor=0.1) == expected


def test_the_floor_of_a_frozen_group_is_not_judged(ranks) -> None:
    """A group that is frozen at zero does not fall below a floor."""
    assert ranks("floor_is_kept", [(1.0, 0.0), (0.1, 0.0)], floor=0.1) == []


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([max(0.01, 1 - step / 10) for step in range(TOTAL)], "over long before"),
        (
            [0.55 + 0.45 * math.cos(math.pi * step / 10) for step in range(TOTAL)],
            "over long before",
        ),
        ([1 - step / 4000 for step in range(TOTAL)], "hardly decayed"),
        ([step / 4000 for step in range(1, TOTAL + 1)], "hardly decayed"),
        ([1 - step / 50 for step in range(50)], "ends before"),
    ],
    ids=["ends", "goes round", "creeps", "still warming up", "refuses"],
)
def test_a_horizon_in_the_wrong_unit(rates: list[float], words: str, judged, ticks) -> None:
    """Each way in which lengths in the wrong unit show is told apart."""
    (finding,) = judged("horizon_matches_units", ticks(rates), shape="warmup-decay", total=TOTAL)
    assert words in finding.summary


@pytest.mark.parametrize(
    "rate",
    [
        lambda s: 0.9**s,
        lambda s: 0.1 ** (s // 30),
        lambda s: 1.0 if s < 90 else 1 - (s - 90) / 10,
        lambda s: (1 + s) ** -0.5,
    ],
    ids=["exponential", "steps", "trapezoid", "inverse root"],
)
def test_decays_of_all_kinds_match_their_horizon(rate: Callable[[int], float], ranks) -> None:
    """Decays that fall fast, late or for ever are as long as the run."""
    rates = [rate(step) for step in range(TOTAL)]
    assert ranks("horizon_matches_units", rates, shape="warmup-decay", total=TOTAL) == []


def test_the_hint_names_the_epochs(judged, ticks) -> None:
    """Where the steps of an epoch are declared, the message does the arithmetic."""
    rates = [max(0.01, 1 - step / 10) for step in range(TOTAL)]
    promises = {"shape": "warmup-decay", "total": TOTAL, "steps_per_epoch": 10}
    (finding,) = judged("horizon_matches_units", ticks(rates), **promises)
    assert "100 steps are 10 epochs of 10" in finding.why


def test_what_never_rose_has_not_failed_to_decay(ranks) -> None:
    """A rate far below its peak throughout is short of the peak, not of its decay."""
    rates = [2.5e-7 * (100 - i) / 100 for i in range(100)]
    promised = {"shape": "warmup-decay", "total": 100, "warmup": 0, "floor": 5e-6}
    assert ranks("horizon_matches_units", rates, peak=5e-4, **promised) == []
    assert ranks("horizon_matches_units", [5e-4] * 100, peak=5e-4, **promised) == ["broken"]
