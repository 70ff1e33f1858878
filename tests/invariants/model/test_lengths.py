"""The judges of a sample alone and of longer inputs, on hand-written traces."""

from math import inf
from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Pass, Trace


def judge(name: str, *seen: Pass, **promises: Any) -> list[Finding]:
    """Judge passes of the model `net` with one invariant."""
    return list(find_invariants(f"model.{name}")[0].judge(Trace("net", seen, promises=promises)))


@pytest.mark.parametrize(
    ("name", "quantity"),
    [("batch_size_one_works", "single"), ("longer_inputs_work", "longer")],
)
def test_what_cannot_be_called_or_has_another_shape(name: str, quantity: str) -> None:
    """The exception, or both shapes, stand in the finding."""
    (failed,) = judge(name, Pass(quantity=f"{quantity} fails", measured=1.0, detail="IndexError"))
    assert failed.measured == "IndexError"
    (odd,) = judge(
        name,
        Pass(quantity=f"{quantity} shape", place="a", measured=1.0, detail="() instead of (1,)"),
    )
    assert (odd.measured, odd.allowed) == ("()", "(1,)")


@pytest.mark.parametrize(("measured", "found"), [(0.0, 0), (1e-5, 0), (1e-3, 1), (inf, 1)])
def test_a_sample_alone(measured: float, found: int) -> None:
    """A ten-thousandth of the largest output is rounding."""
    seen = Pass(quantity="single", place="a", measured=measured)
    assert len(judge("batch_size_one_works", seen)) == found


@pytest.mark.parametrize(("bad", "found"), [(0, 0), (3, 1)])
def test_longer_outputs_that_are_not_finite(bad: int, found: int) -> None:
    """The elements are counted."""
    seen = Pass(quantity="longer", place="a", at="T = 64", measured=bad, count=bad, of=8)
    findings = judge("longer_inputs_work", seen)
    assert [finding.measured for finding in findings] == ["3 of 8 elements"] * found
