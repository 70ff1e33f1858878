"""The judges of evaluation mode, on hand-written traces."""

from math import inf
from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.trace import Pass, Trace


def judge(name: str, *seen: Pass, **promises: Any) -> list[Finding]:
    """Judge passes of the model `net` with one invariant."""
    return list(find_invariants(f"model.{name}")[0].judge(Trace("net", seen, promises=promises)))


def ranks(name: str, *seen: Pass, **promises: Any) -> list[str]:
    """Judge passes, and return how sure each finding is."""
    return [finding.rank.value for finding in judge(name, *seen, **promises)]


def repeat(measured: float, detail: str = "dropout") -> Pass:
    """Write how far two calls are apart."""
    return Pass(
        quantity="repeat", place="output", measured=measured, detail=detail, source="n.py:4"
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (repeat(0.0), []),
        (repeat(1e-6), []),
        (repeat(0.2), ["broken"]),
        (repeat(0.2, "dropout2d"), ["broken"]),
        (repeat(0.2, "randn_like"), ["note"]),
        (repeat(0.2, ""), ["note"]),
        (repeat(inf, "dropout"), ["broken"]),
    ],
)
def test_an_output_that_differs(seen: Pass, expected: list[str]) -> None:
    """Dropout in evaluation is a mistake; anything else that draws may be meant."""
    assert ranks("evaluation_is_deterministic", seen) == expected


def test_where_the_numbers_are_drawn() -> None:
    """The finding points at the line, and names the function."""
    (finding,) = judge("evaluation_is_deterministic", repeat(0.25, "randn_like"))
    assert finding.source == "n.py:4"
    assert finding.why == "numbers are drawn by randn_like in evaluation too"
    assert finding.measured == "differs by 0.25 of the largest output"
    assert ranks("evaluation_is_deterministic", repeat(0.25), **{
        "limit:evaluation_is_deterministic": 0.5
    }) == []  # fmt: skip


@pytest.mark.parametrize(
    ("quantity", "words", "expected"),
    [
        ("parameter", "changes a parameter", "broken"),
        ("buffer", "changes a buffer", "broken"),
        ("counter", "changes a counter", "note"),
        ("mode", "changes the mode", "broken"),
        ("input", "edits its input", "broken"),
        ("reseeded", "seeds the random numbers", "broken"),
        ("carried", "depends on the calls before", "note"),
    ],
)
def test_what_a_call_changes(quantity: str, words: str, expected: str) -> None:
    """Each change is told in its own words, once for all cases."""
    seen = [Pass(quantity=quantity, place="a", measured=0.5, case=case) for case in range(3)]
    (finding,) = judge("evaluation_changes_nothing", *seen)
    assert words in finding.summary
    assert finding.rank.value == expected


def test_what_is_carried_within_rounding() -> None:
    """An output that differs in its last digit depends on nothing."""
    name = "evaluation_changes_nothing"
    assert ranks(name, Pass(quantity="carried", place="a", measured=1e-7)) == []
    assert ranks(name, repeat(0.5)) == []
