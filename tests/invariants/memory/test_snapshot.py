"""The judge of a step against its snapshot, on hand-written traces."""

from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage


def judge(*seen: Usage, share: float = 0.1) -> list[Finding]:
    """Judge what the step of the model `net` took against its snapshot."""
    trace = Trace("net", seen, promises={"budget:snapshot": share})
    return list(find_invariants("memory.memory_matches_snapshot")[0].judge(trace))


def snapshot(measured: float, **columns: Any) -> Usage:
    """Return the event of a peak that is held against a thousand bytes."""
    return Usage(quantity="snapshot", measured=measured, reference=1000.0, **columns)


@pytest.mark.parametrize(("measured", "found"), [(1, 0), (1000, 0), (1100, 0), (1101, 1)])
def test_a_rise_alone_is_broken(measured: float, found: int) -> None:
    """Up to the share, and anything below."""
    assert len(judge(snapshot(measured))) == found


def test_what_grew_is_told() -> None:
    """The categories, what grew most first, and nothing of what shrank."""
    sizes = {"activations": (700, 300), "gradients": (300, 200), "inputs": (100, 500)}
    parts = [
        Usage(quantity="category", place=name, measured=now, reference=then)
        for name, (now, then) in sizes.items()
    ]
    (found,) = judge(snapshot(1100.5, place="a.memory"), *parts, share=0.05)
    assert found.why.startswith("at the peak: activations 400 B more, gradients 100 B more; if")
    assert found.allowed.endswith(" and 5.0 % more, in a.memory")


def test_a_snapshot_that_cannot_be_compared() -> None:
    """One that is of another step, or not there, is broken, and the way out is told."""
    (other,) = judge(snapshot(9999, detail="it was blessed for B=8, and this is B=64"))
    (missing,) = judge(Usage(quantity="no snapshot", place="a.memory"))
    assert other.summary == "the snapshot of a training step of `net` is of another step"
    assert (missing.measured, missing.allowed) == ("no such file", "a.memory")
    assert "--snapshot-update" in other.why
    assert other.why == missing.why
