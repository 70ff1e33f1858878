"""The judges of what is saved and what is copied, on hand-written traces."""

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
    ("quantity", "words"),
    [
        ("unloadable", "cannot be loaded"),
        ("state dtype", "another dtype than the model"),
        ("state value", "a value of `net` is lost"),
        ("untied", "no longer tied"),
        ("restored", "gives other outputs after"),
    ],
)
def test_what_a_state_dict_loses(quantity: str, words: str) -> None:
    """Each loss is told in its own words, once."""
    seen = [
        Pass(quantity=quantity, place="a", at=at, measured=1.0, detail="b")
        for at in ("as it was built", "after it was called in training")
    ]
    (finding,) = judge("state_dict_round_trips", *seen)
    assert words in finding.summary
    assert "as it was built" in finding.at


def test_what_is_not_in_the_state_dict() -> None:
    """The tensor that differs is named where it is known."""
    known, unknown = (
        judge("state_dict_round_trips", Pass(quantity="restored", measured=0.5, detail=detail))
        for detail in ("noise", "")
    )
    assert known[0].why == "`noise` differs and is not in the state dict"
    assert unknown[0].why == "something that differs is not in the state dict"


@pytest.mark.parametrize(("measured", "found"), [(0.0, 0), (1e-6, 0), (1e-4, 1), (inf, 1)])
@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("state_dict_round_trips", "restored"),
        ("copies_are_independent", "copied"),
        ("copies_are_independent", "follows"),
    ],
)
def test_outputs_within_rounding(name: str, quantity: str, measured: float, found: int) -> None:
    """A hundred-thousandth of the largest output is allowed, or the subject's own limit."""
    seen = Pass(quantity=quantity, place="a", measured=measured)
    assert len(judge(name, seen)) == found
    allowed = judge(name, seen, **{f"limit:{name}": 1e9})
    assert len(allowed) == (measured == inf)


@pytest.mark.parametrize(
    ("quantity", "words"),
    [
        ("shared", "shares memory"),
        ("copy untied", "no longer tied in a copy"),
        ("copied", "is not the same model"),
        ("follows", "still uses the original"),
    ],
)
def test_what_is_wrong_with_a_copy(quantity: str, words: str) -> None:
    """Each fault is told in its own words, once."""
    seen = [Pass(quantity=quantity, place=place, measured=1.0) for place in "ab"]
    (finding,) = judge("copies_are_independent", *seen)
    assert words in finding.summary
