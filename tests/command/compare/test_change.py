"""Margins as they are written, intervals, and what becomes of a change under a margin."""

import math
from dataclasses import replace
from random import Random

import pytest

from trainguard.command.compare.interval import Change, apply_margin, interval, margin, quantile
from trainguard.core.errors import DeclarationError

CHANGE = Change(measure="loss", a=2.0, b=2.2, by=0.2, low=0.1, high=0.3, pairs=4)


@pytest.mark.parametrize(
    ("measure", "text", "value", "share"),
    [
        ("loss", "2%", 0.02, True),
        ("loss", " 0.5 % ", 0.005, True),
        ("loss", "0.05", 0.05, False),
        ("loss", "1e-3", 1e-3, False),
        ("time", "3 ms", 3e-3, False),
        ("time", ".5s", 0.5, False),
        ("memory", "20MiB", 20 * 2.0**20, False),
    ],
)
def test_a_margin(measure: str, text: str, value: float, share: bool) -> None:
    """A share of A, or a number in the unit of the measure."""
    read = margin(measure, text)
    assert (read.share, math.isclose(read.value, value)) == (share, True)


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        ("loss", "2 ms"),
        ("time", "3"),
        ("memory", "20 MB"),
        ("time", "-5%"),
        ("loss", "nan"),
        ("loss", ""),
    ],
)
def test_no_margin(measure: str, text: str) -> None:
    """What is no margin is refused with the ways to write one."""
    with pytest.raises(
        DeclarationError, match=f"--{measure}-margin '.*' is no margin. Give .*'5%'"
    ):
        margin(measure, text)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [("20%", "within"), ("0.3", "within"), ("0.2", "open"), ("7%", "open"), ("4%", "worse")],
)
def test_a_change_under_a_margin(text: str, outcome: str) -> None:
    """Worse and within is only what is so with certainty; all else is open."""
    assert apply_margin(CHANGE, margin("loss", text)).outcome == outcome


def test_better_is_within() -> None:
    """B may be as much better as it likes."""
    better = replace(CHANGE, b=1.0, by=-1.0, low=-1.1, high=-0.9)
    assert apply_margin(better, margin("loss", "0.0")).outcome == "within"


@pytest.mark.parametrize("b", [math.nan, math.inf])
def test_what_is_not_finite_is_worse(b: float) -> None:
    """A loss that exploded is worse than any margin."""
    lost = replace(CHANGE, b=b, by=math.nan, low=math.nan, high=math.nan)
    assert apply_margin(lost, margin("loss", "1000%")).outcome == "worse"


def test_a_share_of_a_negative_loss() -> None:
    """The log-likelihood of a density is below zero: a share is one of its size."""
    nll = replace(CHANGE, a=-4.0, b=-3.8)
    assert nll.share == pytest.approx(0.05)
    assert apply_margin(nll, margin("loss", "7.6%")).outcome == "within"
    assert apply_margin(nll, margin("loss", "5.1%")).outcome == "open"
    assert apply_margin(nll, margin("loss", "2%")).outcome == "worse"


@pytest.mark.parametrize(
    ("freedom", "known"),
    [(1, 63.657), (2, 9.925), (4, 4.604), (6, 3.707), (7, 3.499), (10, 3.169), (30, 2.750)],
)
def test_quantiles(freedom: int, known: float) -> None:
    """They are those of the tables."""
    assert quantile(freedom) == pytest.approx(known, abs=0.008)


def test_intervals_hold_what_they_say() -> None:
    """Of two thousand intervals of five draws each, one in a hundred misses the mean."""
    random = Random(0)
    ends = [interval([random.gauss(3, 2) for _ in range(5)]) for _ in range(2000)]
    missed = sum(not low < 3 < high for low, high in ends)
    assert 8 <= missed <= 36


def test_the_interval_of_one_difference() -> None:
    """One pair says nothing of the noise."""
    assert interval([0.5]) == (0.5, 0.5)
