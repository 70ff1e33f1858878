"""The judge of curves: what it says of a snapshot that is missing, bad, or another one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.invariants.loop.conftest import judge
from trainguard.core.finding import Finding, Rank
from trainguard.curves.curve import Curve
from trainguard.events.curve import Kept
from trainguard.invariants.loop.runs.curves import sparkline

STEPS = tuple(range(20))
BASE = tuple(2.0 * 0.95**step for step in STEPS)
PLACE = "__snapshots__/guard_x/loop.curve_matches_snapshot[loss-cpu].curve"


def text(values=BASE, drift: float = 1e-7, column: str = "loss", **conditions: str) -> str:
    """Return the text of a curve."""
    steps = tuple(range(len(values)))
    own = (drift,) * len(values)
    return Curve(column, steps, (tuple(values),), own, len(values), conditions).to_text()


def found(column: str = "loss", **kept: str) -> list[Finding]:
    """Judge one curve."""
    event = Kept(column=column, place=PLACE, **kept)
    return judge("curve_matches_snapshot", [event])


def test_the_curve_that_was_blessed_is_silent() -> None:
    """It is, and so is one that differs by a rounding."""
    nearly = tuple(value * (1 + 3e-6) for value in BASE)
    assert found(found=text(), kept=text()) == []
    assert found(found=text(nearly), kept=text()) == []


def test_a_missing_snapshot_is_broken() -> None:
    """It names the file, and how it is made."""
    (finding,) = found(found=text())
    assert finding.rank is Rank.BROKEN
    assert finding.summary == "the loss of `train` has no snapshot"
    assert finding.measured == f"no file {PLACE}"
    assert "--snapshot-update" in finding.why


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (text()[:200], "it is truncated"),
        (text().replace("format 1", "format 2"), "it has the newer format 2"),
        (text().replace("3 1.71475", "3 nan"), "has a value that is not finite"),
        (text().replace("3 1.71475", "3 1.7"), "it was edited by hand"),
        ("<<<<<<< HEAD\n" + text(), "it has conflict markers of a merge"),
        ("\x00\x01", "it is no curve of trainguard"),
    ],
)
def test_a_bad_file_is_broken(bad: str, told: str) -> None:
    """One sentence for each kind, and never a pass."""
    (finding,) = found(found=text(), kept=bad)
    assert finding.rank is Rank.BROKEN
    assert finding.summary == "the snapshot of the loss of `train` cannot be read"
    assert finding.measured.startswith(f"{PLACE}: {told}") or told in finding.measured


def test_a_departure_is_told_in_full() -> None:
    """The first step outside, the size there and at the end, the sparkline, the likely kind."""
    late = tuple(value * (1.25 if step >= 10 else 1) for step, value in enumerate(BASE))
    (finding,) = found(found=text(late), kept=text())
    assert finding.summary == "the loss of `train` left the band of its snapshot"
    assert finding.at == "step 10, and up to step 19"
    assert finding.measured == ("0.25 of the value (1.197474 then, 1.496842 now), 0.25 at step 19")
    assert finding.allowed == "4e-06 of the value"
    assert re.match(r"_{10}[=+*#%@]{10} ", finding.curve)
    assert "perhaps a schedule" in finding.why


def test_conditions_that_differ_come_first() -> None:
    """Before any guess at the code."""
    moved = tuple(2 * value for value in BASE)
    (finding,) = found(
        found=text(moved, torch="2.13.0", threads="4"), kept=text(torch="2.9.1", threads="1")
    )
    told = "torch was 2.9.1 and is 2.13.0; threads was 1 and is 4; it differs from the first step"
    assert finding.why.startswith(told)


def test_a_rate_speaks_for_itself() -> None:
    """No guess is needed where the column is the rate."""
    (finding,) = found(
        "rate", found=text((0.1, 0.1, 0.2), column="rate"), kept=text((0.1, 0.1, 0.1))
    )
    assert finding.summary == "the rate of `train` left the band of its snapshot"
    assert finding.why.startswith("another rate or another schedule from there on")


def test_another_length_is_broken() -> None:
    """In steps, on both sides."""
    (finding,) = found(found=text(BASE[:15]), kept=text())
    assert finding.summary == "the loss of `train` has another length than its snapshot"
    assert (finding.measured, finding.allowed) == ("15 steps", "20 steps")


def test_a_refusal_is_broken() -> None:
    """What is not blessed fails, with the reason."""
    (finding,) = found(found=text(), refused="it is not finite at step 3")
    assert finding.summary == "the loss of `train` was not blessed"
    assert finding.measured == "it is not finite at step 3"


def test_a_column_that_the_run_does_not_have_is_broken() -> None:
    """It would pass for ever."""
    (finding,) = found("update_norm")
    assert finding.rank is Rank.BROKEN
    assert finding.summary == "the update norm of `train` is not known"


def test_memory_without_an_accelerator_is_a_note() -> None:
    """It is that of the process, and would be a false alarm."""
    (finding,) = found("memory")
    assert finding.rank is Rank.NOTE


def test_a_snapshot_for_one_version_says_what_changed() -> None:
    """The common one is left as it is, and the difference is told."""
    moved = tuple(1.5 * value for value in BASE)
    now = text(moved, torch="2.15.0")
    (finding,) = found(found=now, kept=now, apart=text(torch="2.13.0"))
    assert finding.rank is Rank.NOTE
    assert finding.summary == "the loss of `train` is now kept apart for this version of torch"
    assert "0.5 of the value at step 0, 0.5 at the end" in finding.measured
    assert finding.why.startswith("torch was 2.13.0 and is 2.15.0")


def test_seeds_are_judged_as_a_distribution() -> None:
    """The false-alarm rate is told, and pairs of runs are not compared."""
    runs = [tuple(v + 0.01 * own for v in BASE) for own in (0, 1, 2, 3, 4)]
    kept = Curve("loss", STEPS, tuple(runs), (), 20)
    turned = Curve("loss", STEPS, tuple(reversed(runs)), (), 20)
    far = Curve("loss", STEPS, tuple(tuple(v + 1 for v in run) for run in runs), (), 20)
    assert found(found=turned.to_text(), kept=kept.to_text()) == []
    (finding,) = found(found=far.to_text(), kept=kept.to_text())
    assert finding.allowed.endswith("of a mean of 5 seeds, at 0.001 false alarms a comparison")


def test_a_limit_of_its_own_counts_envelopes() -> None:
    """A subject may be stricter than 30 envelopes, or less so."""
    moved = Kept(column="loss", found=text(tuple(v * 1.00001 for v in BASE)), kept=text())
    (finding,) = judge("curve_matches_snapshot", [moved])
    assert finding.allowed == "4e-06 of the value"
    limits = {"limit:curve_matches_snapshot": 200.0}
    assert judge("curve_matches_snapshot", [moved], **limits) == []


@given(st.text(max_size=60) | st.sampled_from([text()[:n] for n in range(0, 400, 7)]))
def test_no_file_is_too_odd(kept: str) -> None:
    """Whatever stands in a file, there is a finding and no traceback."""
    assert len(found(found=text(), kept=kept)) == 1


def test_a_sparkline_is_short_and_ascii() -> None:
    """Long curves are drawn by the worst of each part."""
    drawn = sparkline([0.5] * 5000 + [2.0] * 4000 + [1e5] * 1000)
    assert len(drawn) == 50
    assert drawn == "_" * 25 + "." * 20 + "*" * 5
    assert sparkline([0.0, float("inf")]) == "_@"
