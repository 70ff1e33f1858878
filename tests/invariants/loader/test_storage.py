"""What is said of what batches share."""

import pytest

from tests.invariants.loader.tried import judged, ranks, served

NAME = "batches_are_independent"


def test_nothing_is_said_of_nothing() -> None:
    """Batches that stay what they are leave no event."""
    assert judged(NAME, []) == []


def test_overwritten_batches_are_broken() -> None:
    """They are counted, and the first is named."""
    (finding,) = judged(NAME, [served("overwritten", 5, 6, at="batch 0")])
    assert finding.rank.value == "broken"
    assert (finding.at, finding.measured) == ("split 'train', batch 0", "5 of 6 batches changed")


@pytest.mark.parametrize(
    ("where", "rank"),
    [("in the process", "broken"), ("in lasting workers", "broken"), ("in workers", "note")],
)
def test_an_edited_data_set(where: str, rank: str) -> None:
    """Workers that end with the epoch forget the edit."""
    events = [served("edited", 40, 200, at="windows", detail=where)]
    (finding,) = judged(NAME, events)
    assert finding.rank.value == rank
    assert finding.at == "split 'train', array windows"


def test_each_is_said_once() -> None:
    """The splits of one data set share their fate."""
    events = [served("overwritten", 1, 6), served("edited", 1, 2), served("edited", 1, 2)]
    assert ranks(NAME, events) == ["broken", "broken"]
