"""The judges of the peak and of the categories, on hand-written traces."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import Unjudged
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage

GIB = float(1 << 30)


def judge(name: str, *seen: Usage, **promises: Any) -> list[Finding]:
    """Judge what the step of the model `net` took with one invariant."""
    limits = {f"budget:{category}": limit for category, limit in promises.items()}
    return list(find_invariants(f"memory.{name}")[0].judge(Trace("net", seen, promises=limits)))


def peak(measured: float) -> Usage:
    """Return the event of a peak."""
    return Usage(quantity="peak", at="backward, step 2", measured=measured, how="predicted")


def category(name: str, most: float, then: float = 0.0) -> Usage:
    """Return the event of a category: its own most, and what it held at the peak."""
    return Usage(quantity="category", place=name, measured=most, reference=then, how="predicted")


def stopped(*, refused: bool, held: float = GIB, asked: float = 0.0) -> Usage:
    """Return the event of a step that was not made to its end."""
    return Usage(quantity="stopped", measured=held, reference=asked, count=int(refused))


@pytest.mark.parametrize(("measured", "found"), [(GIB - 1, 0), (GIB, 0), (GIB + 1, 1)])
def test_the_peak_to_the_byte(measured: float, found: int) -> None:
    """The budget itself may be used up."""
    assert len(judge("peak_is_within_budget", peak(measured), peak=GIB)) == found


def test_what_a_finding_says() -> None:
    """Both amounts in one unit, and the three largest categories at that moment."""
    parts = [category(name, 9 * GIB, then) for name, then in zip("abcd", (1, 3, 2, 4), strict=True)]
    (found,) = judge("peak_is_within_budget", peak(3 * GIB), *parts, peak=2 * GIB)
    assert (found.measured, found.allowed) == (
        "3.00 GiB, predicted",
        "2.00 GiB, the budget's peak",
    )
    assert found.why == "at the peak: d 4 B, b 3 B, c 2 B"
    assert found.summary == "a training step of `net` takes more memory than its budget"


def test_amounts_that_look_alike_are_told_apart() -> None:
    """One byte more is shown in bytes."""
    (found,) = judge("peak_is_within_budget", peak(GIB + 1), peak=GIB)
    assert found.measured.startswith("1.00 GiB (1,073,741,825 B)")
    assert found.allowed.startswith("1.00 GiB (1,073,741,824 B)")


def test_a_step_that_runs_out_of_memory_is_broken_below_its_budget() -> None:
    """It did not come to its end, whatever the budget would have allowed."""
    seen = (peak(3 * GIB), stopped(refused=True, held=GIB, asked=2 * GIB))
    (found,) = judge("peak_is_within_budget", *seen, peak=9 * GIB)
    assert found.summary.endswith("runs out of memory")
    assert found.measured.startswith("at least 3.00 GiB")
    assert found.why.startswith("it was refused 2.00 GiB more while it held 1.00 GiB")


def test_a_step_that_was_stopped() -> None:
    """Above its budget it is broken, at the least by so much; below it, nothing is known."""
    seen = (peak(3 * GIB), stopped(refused=False))
    (found,) = judge("peak_is_within_budget", *seen, peak=2 * GIB)
    assert found.measured.startswith("at least 3.00 GiB")
    with pytest.raises(Unjudged, match="stopped at 1.00 GiB, which leaves open whether its peak"):
        judge("peak_is_within_budget", *seen, peak=9 * GIB)


def test_categories_by_their_own_limits() -> None:
    """Each is held against its own; one without a limit may be anything."""
    parts = [category("activations", 3), category("optimizer", 9), category("inputs", 99)]
    found = judge("category_is_within_budget", *parts, activations=3, optimizer=8)
    assert [one.allowed for one in found] == ["8 B, the budget's optimizer"]
    assert found[0].summary == (
        "the state tensors of the optimizer of a training step of `net` take more memory than"
        " their budget"
    )


def test_a_category_names_the_modules_that_hold_most_of_it() -> None:
    """The largest three at the peak of the step, of that category alone."""
    modules = [
        Usage(quantity="module", place=f"{name}, {kind}", measured=size)
        for name, kind, size in [
            ("net.a", "activations", 1), ("net.b", "activations", 4), ("net.c", "gradients", 9),
            ("net.d", "activations", 3), ("net.e", "activations", 2),
        ]
    ]  # fmt: skip
    seen = (category("activations", 10), *modules)
    (found,) = judge("category_is_within_budget", *seen, activations=9)
    assert found.why == "at the peak of the step: net.b 4 B, net.d 3 B, net.e 2 B"


def test_categories_of_a_step_that_was_stopped() -> None:
    """What is above its limit is broken; where nothing is, nothing is known."""
    seen = (category("activations", 3), stopped(refused=True))
    assert len(judge("category_is_within_budget", *seen, activations=2)) == 1
    with pytest.raises(Unjudged, match="whether its categories are within the budget"):
        judge("category_is_within_budget", *seen, activations=3)
