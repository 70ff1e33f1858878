"""Curves of several seeds, compared as distributions."""

import random

import pytest

from trainguard.curves.curve import Curve
from trainguard.curves.tolerance import FALSE_ALARMS, critical, departs, spread_departure

STEPS = tuple(range(40))


def seeds(stream: random.Random, count: int = 5, shift: float = 0.0, spread: float = 0.1) -> Curve:
    """Return falling curves that differ by an offset of each seed and by noise of each step."""
    offsets = [stream.gauss(shift, spread) for _ in range(count)]
    runs = [tuple(5 - 0.1 * s + own + stream.gauss(0, 0.05) for s in STEPS) for own in offsets]
    return Curve("loss", STEPS, tuple(runs), (), len(STEPS))


@pytest.mark.parametrize(
    ("freedom", "chance", "t"),
    [(1, 0.05, 12.706), (2, 0.05, 4.303), (4, 0.01, 4.604), (5, 0.05, 2.571), (8, 0.001, 5.041)],
)
def test_the_quantiles_are_those_of_the_tables(freedom: int, chance: float, t: float) -> None:
    """Student's t, two-sided, as printed in any table."""
    assert critical(freedom, chance) == pytest.approx(t, abs=1e-3)


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Of 1,000 comparisons where nothing has changed, about one may be an alarm."""
    stream = random.Random(0)
    alarms = sum(
        spread_departure(seeds(stream), seeds(stream, spread=0.1)) is not None for _ in range(1000)
    )
    assert alarms <= 5  # the chance of more is below 1 in 1,000 at the stated rate
    assert FALSE_ALARMS == 1e-3


def test_a_change_that_exceeds_the_spread_is_found() -> None:
    """It is told from the first stretch on, with both means."""
    stream = random.Random(1)
    found = departs(seeds(stream), seeds(stream, shift=1.0))
    assert found is not None
    assert (found.kind, found.step, found.last) == ("offset", 0, 39)
    assert found.found - found.kept == pytest.approx(1.0, abs=0.3)
    assert abs(found.size) > found.allowed


def test_a_change_that_begins_later_is_told_where() -> None:
    """The first stretch that differs begins at its step."""
    stream = random.Random(2)
    late = seeds(stream)
    runs = tuple(tuple(v + 2.0 * (s >= 20) for s, v in enumerate(run)) for run in late.runs)
    found = departs(seeds(stream), Curve("loss", STEPS, runs, (), len(STEPS)))
    assert found is not None
    assert (found.kind, found.step) == ("slope", 20)


def test_another_number_of_seeds_is_no_comparison() -> None:
    """A snapshot of one run says nothing about a distribution."""
    stream = random.Random(3)
    found = departs(seeds(stream, 1), seeds(stream))
    assert found is not None
    assert (found.kind, found.kept, found.found) == ("seeds", 1, 5)


def test_other_steps_are_another_length() -> None:
    """Stretches of other steps cannot be compared."""
    stream = random.Random(4)
    short = seeds(stream)
    cut = Curve("loss", STEPS[:30], tuple(run[:30] for run in short.runs), (), 30)
    found = departs(seeds(stream), cut)
    assert found is not None
    assert (found.kind, found.kept, found.found) == ("length", 40, 30)


def test_runs_that_are_no_numbers_are_outside() -> None:
    """One diverged seed cannot hide in the spread that it makes."""
    stream = random.Random(5)
    lost = seeds(stream)
    runs = (*lost.runs[:4], (float("nan"),) * len(STEPS))
    assert departs(seeds(stream), Curve("loss", STEPS, runs, (), len(STEPS))) is not None
