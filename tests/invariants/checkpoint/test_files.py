"""What is said of saves that are interrupted, and of what is deleted."""

from typing import Any

import pytest

from tests.invariants.checkpoint.resumed import judged, resumption
from trainguard.core.finding import Rank
from trainguard.events.checkpoint import Rotation

ATOMIC, NEWEST = "checkpoint_write_is_atomic", "rotation_keeps_the_newest"


def cut(**columns: Any):
    """Return how a run goes on that was killed in a save of 100 bytes."""
    return resumption(**{"saved": 6, "made": 1, "limit": 50, "size": 100, **columns})


@pytest.mark.parametrize("began", [6, 9, 3, -1])
def test_a_run_that_goes_on_from_somewhere_is_passed(began: int) -> None:
    """From the checkpoint before, from the new one that was whole, or from an older one."""
    assert judged(ATOMIC, resumption(), cut(began=began)) == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"error": "EOFError: ran out", "made": 0}, "it raised EOFError: ran out"),
        ({"began": 0}, "it begins anew"),
        ({"made": 0}, "it begins anew"),
    ],
)
def test_nothing_to_go_on_from_is_found(columns: dict, told: str) -> None:
    """The message says how much was written."""
    (finding,) = judged(ATOMIC, resumption(), cut(**columns))
    assert finding.measured == told
    assert "50 of 100 bytes" in finding.why


@pytest.mark.parametrize("columns", [{"error": "OSError: x"}, {"made": 0}, {"began": 0}])
def test_a_run_that_never_goes_on_is_not_told_again(columns: dict) -> None:
    """What fails without an interruption is another finding."""
    assert judged(ATOMIC, resumption(**columns), cut(error="OSError: x")) == []


def deleted(**columns: Any) -> Rotation:
    """Return a file that was deleted with three older ones beside it and no newer one."""
    told = {"name": "step_10.pt", "number": (10,), "older": 3, "alphabetical": True}
    return Rotation(quantity="deleted", at="after step 10", **{**told, **columns})


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({}, True),
        ({"alphabetical": False}, False),  # perhaps it was not among the best
        ({"alphabetical": False, "keep": 3}, True),
        ({"older": 0}, False),  # the only one, before the next is written
        ({"newer": 3, "older": 0, "keep": 3}, False),
        ({"newer": 2, "older": 1, "keep": 3}, False),  # before the next is written
        ({"newer": 1, "older": 2, "keep": 3}, True),
        ({"newer": 5, "older": 1, "keep": 3}, False),  # the older one may be the best
    ],
)
def test_what_is_deleted(columns: dict, found: bool) -> None:
    """The newest must stay, and as many as are promised."""
    assert bool(judged(NEWEST, deleted(**columns))) == found


def test_the_time_of_writing_is_a_note() -> None:
    """It is right in a folder that nobody copied; where names are wrong too, those are told."""
    touched = deleted(touched=True, keep=3)
    (finding,) = judged(NEWEST, touched)
    assert finding.rank is Rank.NOTE
    assert [f.rank for f in judged(NEWEST, deleted(keep=3), touched)] == [Rank.BROKEN]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"quantity": "kept", "count": 5, "keep": 3}, "keeps more checkpoints"),
        ({"quantity": "raised", "detail": "ValueError: 'best'"}, "fails on a folder"),
        ({"quantity": "link", "name": "best.pt"}, "that a link points to"),
        ({"quantity": "foreign", "name": "step_best.pt"}, "not its to rotate"),
        ({"quantity": "rank", "name": "step_1.pt"}, "a process that is not the first"),
    ],
)
def test_other_harm_is_found(told: dict, words: str) -> None:
    """Each kind has its sentence."""
    (finding,) = judged(NEWEST, Rotation(at="then", **told))
    assert words in finding.summary


def test_as_many_as_promised_are_passed() -> None:
    """Fewer are no harm either, as long as the newest are among them."""
    kept = [Rotation(quantity="kept", count=count, keep=3) for count in (0, 2, 3)]
    assert judged(NEWEST, *kept) == []
