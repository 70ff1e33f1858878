"""The judges of savings, of elements of a loss and of headroom, on hand-written traces."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Trace, Usage


def judge(name: str, *seen: Usage, **promises: Any) -> list[Finding]:
    """Judge what the step of the model `net` took with one invariant."""
    told = {f"budget:{option}": value for option, value in promises.items()}
    conditions = {"family": "loss" if "per_element" in promises else "model"}
    return list(find_invariants(f"memory.{name}")[0].judge(Trace("net", seen, conditions, told)))


def saving(measured: float, passing: int = 80, place: str = "its checkpoint") -> Usage:
    """Return the event of a saving from 100 bytes on, so many of which are of the passes."""
    return Usage(
        quantity="saving", place=place, measured=measured, reference=100.0, count=passing,
        how="predicted",
    )  # fmt: skip


@pytest.mark.parametrize(("measured", "found"), [(60.0, 0), (70.0, 0), (71.0, 1), (130.0, 1)])
def test_a_promised_saving(measured: float, found: int) -> None:
    """Thirty per cent of the larger peak, or more."""
    findings = judge("saving_is_real", saving(measured), saving=0.3)
    assert [one.rank for one in findings] == [Rank.BROKEN] * found


def test_what_a_finding_says() -> None:
    """The share, both peaks, and the categories at them."""
    parts = [
        Usage(quantity="category", place="activations", measured=60.0, reference=60.0),
        Usage(quantity="category", place="parameters", measured=40.0, reference=40.0),
    ]
    (found,) = judge("saving_is_real", saving(100.0), *parts, saving=0.3)
    assert found.measured == "0.0 % less: 100 B instead of 100 B, predicted"
    assert found.allowed == "30.0 % less or more"
    assert found.why.startswith("at the peaks: activations 60 B instead of 60 B, parameters")
    assert found.why.endswith("(nothing changed: it may reach no module)")


def test_a_model_too_small_to_save_anything() -> None:
    """Without sizes it is a note, with the sizes of the budget it is broken."""
    (small,) = judge("saving_is_real", saving(90.0, passing=20), saving=0.3)
    assert small.rank is Rank.NOTE
    assert "only 20.0 % of the peak" in small.why
    (real,) = judge("saving_is_real", saving(90.0, passing=20), saving=0.3, sized=True)
    assert real.rank is Rank.BROKEN


def test_less_than_another_subject() -> None:
    """The other one is named, and a small share of activations excuses nothing."""
    (found,) = judge("saving_is_real", saving(90.0, passing=1, place="`categorical`"), saving=0.3)
    assert found.rank is Rank.BROKEN
    assert found.summary == (
        "a training step of `net` does not take as much less memory than `categorical` as promised"
    )


@pytest.mark.parametrize(
    ("average", "further", "found"),
    [(24.0, 24.0, 0), (24.5, 24.5, 1), (900.0, 20.0, 0), (20.0, 60.0, 0), (30.0, 60.0, 1)],
    ids=["at the limit", "above", "constant table", "pairs of a batch", "both"],
)
def test_bytes_for_each_element(average: float, further: float, found: int) -> None:
    """Neither what is constant nor what the pairs of a larger batch cost is held against it."""
    seen = Usage(quantity="element", place="x", measured=average, reference=further, of=100)
    findings = judge("loss_memory_per_element_is_bounded", seen, per_element=24)
    assert len(findings) == found
    for one in findings:
        assert one.summary.startswith("one call of `net` holds more memory for each element")
        assert one.measured.startswith(f"{min(average, further):.1f} B for each of 100 elements")


@pytest.mark.parametrize(
    ("reserved", "ran_out", "summary"),
    [
        (89.0, 0, ""),
        (90.0, 0, ""),
        (91.0, 0, "a training step of `net` leaves less of the device free than promised"),
        (50.0, 1, "a training step of `net` runs out of memory"),
    ],
)
def test_headroom(reserved: float, ran_out: int, summary: str) -> None:
    """A tenth of the device stays free, and the step comes to its end."""
    seen = Usage(quantity="headroom", measured=reserved, reference=100.0, count=ran_out)
    found = judge("headroom_is_kept", seen, headroom=0.1)
    assert [one.summary for one in found] == [summary] * bool(summary)
