"""The judges of any rate, whatever shape was promised."""

import math

import pytest

from trainguard.core.finding import Rank
from trainguard.events.trace import Tick

TOTAL = 100


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9])
def test_a_rate_that_is_no_rate_is_found(bad: float, judged, ticks) -> None:
    """Nan, infinity and a negative rate are named with their step and group."""
    rates = [(1.0, bad if step == 7 else 1.0) for step in range(TOTAL)]
    (finding,) = judged("rate_is_finite_and_positive", ticks(rates), total=TOTAL)
    assert (finding.rank, finding.at) == (Rank.BROKEN, "step 7, group 1")


def test_a_negative_rate_past_an_undeclared_end_is_a_note(ranks) -> None:
    """Without a total, a line that crosses zero may be driven past its end."""
    line = [1 - step / 80 for step in range(100)]
    assert ranks("rate_is_finite_and_positive", line) == ["note"]
    assert ranks("rate_is_finite_and_positive", line, total=100) == ["broken"]


@pytest.mark.parametrize(
    ("rates", "promises", "expected"),
    [
        ([0.0] * 9, {}, ["broken"]),
        ([1.0] * 5 + [0.0] * 4, {"total": 9}, ["broken"]),
        ([1.0] * 5 + [0.0] * 4, {}, []),
        ([1.0] * 8 + [0.0], {"total": 9}, []),
        ([0.0] + [1.0] * 8, {"total": 9}, []),
        ([1.0, 0.0] * 4 + [1.0], {"total": 9, "shape": "restarts"}, []),
        ([1.0, 0.0, 0.0] * 3, {"total": 9, "shape": "restarts"}, ["broken"]),
        ([(1.0, 0.0)] * 9, {"total": 9}, []),
    ],
    ids=["all", "inside", "no total", "last", "first", "touched", "stayed", "frozen group"],
)
def test_zeros(rates: list[float], promises: dict, expected: list[str], ranks) -> None:
    """A rate of zero is broken throughout and inside a promised run, and nowhere else."""
    assert ranks("rate_is_finite_and_positive", rates, **promises) == expected


@pytest.mark.parametrize(
    ("zeros", "unit", "expected"),
    [(0, "step", []), (1, "step", ["note"]), (2, "step", ["broken"]), (1, "epoch", ["broken"])],
)
def test_first_steps_at_zero(zeros: int, unit: str, expected: list[str], ranks) -> None:
    """One lost step is a note as transformers means it; two, or an epoch, are broken."""
    assert ranks("first_step_learns", [0.0] * zeros + [1.0] * 9, unit=unit) == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("warmup-decay", ["broken"]), ("constant", ["broken"]), ("restarts", []), (None, ["note"])],
)
def test_a_leap_after_the_warmup(shape: str | None, expected: list[str], ranks) -> None:
    """A tenfold rise is broken for a promised shape, a note for none, and restarts may leap."""
    rates = [1.0] * 5 + [0.1] * 5 + [1.0] * 5
    assert ranks("rate_changes_smoothly", rates, shape=shape) == expected


def test_a_leap_in_the_warmup_or_downwards_is_by_design(ranks) -> None:
    """ConstantLR leaps to its rate when its warmup is over; MultiStepLR drops."""
    rates = [0.1] * 5 + [1.0] * 5 + [0.1] * 5
    assert ranks("rate_changes_smoothly", rates, shape="warmup-decay", warmup=5) == []
    assert ranks("rate_changes_smoothly", rates) == []


WARMUP = [(step + 1) / 1000 for step in range(100)]


@pytest.mark.parametrize(
    ("rates", "warmup", "expected"),
    [
        ([*WARMUP, 1.0, *(step**-0.5 for step in range(101, 200))], 100, ["broken"]),
        ([*WARMUP[:-1], 1.0, *(step**-0.5 for step in range(101, 200))], 100, ["broken"]),
        ([*WARMUP, 1.0, *(step**-0.5 for step in range(101, 200))], None, ["note"]),
        ([0.001, 0.01, 0.1, 0.01, 0.001], 2, []),
        ([0.01] * 3 + [1.0, 0.1, 0.01, 0.001], 3, []),
        ([0.0, 1.0, 0.1, 0.1, 0.1], 1, []),
        ([0.5, 1.0, 0.4, 0.4, 0.4], 1, []),
    ],
    ids=["at its end", "before", "unpromised", "by factors", "flat", "from zero", "of one step"],
)
def test_a_spike_at_the_end_of_the_warmup(rates, warmup, expected: list[str], ranks) -> None:
    """One step at many times the rate of both its neighbours leads nowhere, unlike a warmup."""
    promised = {} if warmup is None else {"warmup": warmup}
    assert ranks("rate_changes_smoothly", rates, **promised) == expected


def test_a_leap_is_judged_by_the_subjects_own_limit(ranks) -> None:
    """The documented factor of two can be overridden, and the message states the limit."""
    rates = [1.0, 0.3, 0.9]
    limit = {"limit:rate_changes_smoothly": 4.0}
    assert ranks("rate_changes_smoothly", rates, shape="warmup-decay") == ["broken"]
    assert ranks("rate_changes_smoothly", rates, shape="warmup-decay", **limit) == []


def test_a_constant_that_moves_names_where_and_since_when(judged, ticks) -> None:
    """The largest change is measured, the first one located."""
    rates = [1.0] * 5 + [0.9, 0.8, 0.95]
    (finding,) = judged("constant_rate_is_kept", ticks(rates), shape="constant")
    assert (finding.at, finding.measured) == ("step 6, since step 5", "0.8")
    assert judged("constant_rate_is_kept", ticks([1.0] * 9), shape="constant") == []


def test_a_false_report_is_found(judged) -> None:
    """A report is held against the group that it is about."""
    events = [Tick(phase="run", step=s, rates=(1.0, 0.5), reported=(1.0, 0.5)) for s in range(3)]
    assert judged("reported_rate_is_in_force", events) == []
    events.append(Tick(phase="run", step=3, rates=(1.0, 0.4), reported=(1.0, 0.5)))
    (finding,) = judged("reported_rate_is_in_force", events)
    assert finding.at == "step 3, group 1, since step 3"
