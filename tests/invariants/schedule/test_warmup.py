"""The judges of the warmup and its peak."""

import pytest

TOTAL = 100


@pytest.mark.parametrize(
    ("rates", "warmup", "expected"),
    [
        ([0.2, 0.1, 0.5, 1.0], 3, ["broken"]),
        ([1.0, 1.0, 1.0, 1.0], 3, ["broken"]),
        ([0.1, 0.1, 0.5, 1.0, 0.2], 3, []),
        ([1.0, 0.9], 0, []),
        ([1.0, 1.0], 1, []),
    ],
    ids=["falls", "flat", "steps", "none", "of one step"],
)
def test_warmups(rates: list[float], warmup: int, expected: list[str], ranks) -> None:
    """A warmup rises and never falls; one of zero or one steps need not rise."""
    assert ranks("warmup_rises", rates, warmup=warmup) == expected


@pytest.mark.parametrize(("reached", "expected"), [(0.995, []), (0.985, ["broken"])])
def test_the_peak_is_reached_to_one_percent(reached: float, expected: list[str], ranks) -> None:
    """One percent is allowed at the end of the warmup."""
    rates = [0.5 * reached, reached, reached]
    assert ranks("warmup_reaches_peak", rates, warmup=1, peak=1.0) == expected


@pytest.mark.parametrize(("top", "expected"), [(1.005, []), (1.02, ["broken"])])
def test_the_peak_is_kept_to_one_percent(top: float, expected: list[str], ranks) -> None:
    """One percent is allowed above the peak."""
    assert ranks("peak_is_not_exceeded", [0.5, top, 0.5], peak=1.0) == expected


@pytest.mark.parametrize(
    ("warmup", "shape", "expected"),
    [
        (20, "warmup-decay", []),
        (30, "warmup-decay", ["note"]),
        (60, "warmup-decay", ["broken"]),
        (44, "one-cycle", []),
        (60, "restarts", []),
    ],
)
def test_the_length_of_a_warmup(warmup: int, shape: str, expected: list[str], ranks) -> None:
    """A fifth of the run is short, a half is a note, more is broken; one cycle may take longer."""
    rates = [min(1.0, step / warmup) for step in range(TOTAL)]
    assert ranks("warmup_is_short", rates, shape=shape, total=TOTAL) == expected


def test_a_peak_that_is_never_reached_is_broken(judged, ticks) -> None:
    """A run that stays below its promised peak has never been warm."""
    (finding,) = judged("warmup_is_short", ticks([0.1] * 9), total=9, peak=1.0, warmup=1)
    assert "never" in finding.summary


def test_a_drawn_warmup_is_not_called_long(ranks) -> None:
    """What Hypothesis drew is the range of the property, and no one's choice."""
    rates = [min(1.0, step / 60) for step in range(TOTAL)]
    promises = {"shape": "warmup-decay", "total": TOTAL}
    assert ranks("warmup_is_short", rates, **promises, **{"warmup@0": 60}) == []


def test_a_squared_rate_is_named(judged, ticks) -> None:
    """A LambdaLR that is given a rate, and not a factor, multiplies it by itself."""
    (found,) = judged("warmup_reaches_peak", ticks([2.5e-7, 2.5e-7]), warmup=1, peak=5e-4)
    assert "LambdaLR" in found.why
