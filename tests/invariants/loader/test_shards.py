"""What is said of how ranks and workers share the data."""

import pytest

from tests.invariants.loader.tried import judged, ranks, served

NAME = "shards_partition_the_data"


def test_what_is_shared_out_once_is_passed() -> None:
    """Nothing twice and nothing left out, for several numbers of ranks."""
    events = [served(q, 0, 0, at=f"{n} ranks", detail="ranks")
              for n in (2, 4) for q in ("shared", "missing", "uneven")]  # fmt: skip
    assert judged(NAME, events) == []


@pytest.mark.parametrize("quantity", ["shared", "missing"])
def test_what_evens_the_ends_is_passed(quantity: str) -> None:
    """As many samples as fill up, or are dropped from, the last batches are allowed."""
    assert judged(NAME, [served(quantity, 5, 5, at="8 ranks", detail="ranks")]) == []


@pytest.mark.parametrize(
    ("quantity", "words"), [("shared", "serve the same samples"), ("missing", "leave samples out")]
)
@pytest.mark.parametrize("kind", ["ranks", "workers"])
def test_one_more_is_found(quantity: str, words: str, kind: str) -> None:
    """The message says who, how many of them there were, and how many samples."""
    (finding,) = judged(NAME, [served(quantity, 6, 5, at=f"8 {kind}", detail=kind)])
    assert finding.summary == f"the {kind} of `audio` {words}"
    assert finding.at == f"split 'train', 8 {kind}"
    assert (finding.measured[:2], finding.allowed[:2]) == ("6 ", "5 ")


def test_it_is_said_once_for_all_numbers_of_ranks() -> None:
    """Two and four ranks that serve everything are one finding."""
    events = [served("shared", n, 0, at=f"{n} ranks", detail="ranks") for n in (2, 4, 8)]
    (finding,) = judged(NAME, events)
    assert finding.at.endswith("2 ranks")


def test_streams_that_are_alike_are_found() -> None:
    """Of ranks without an end, any two that serve the same are too many."""
    events = [served("alike", 4, 4, at="4 ranks", detail="ranks")]
    (finding,) = judged(NAME, events)
    assert (finding.measured, finding.allowed) == ("4 ranks alike", "0 ranks alike")


@pytest.mark.parametrize(("count", "found"), [(1, []), (2, ["broken"])])
def test_a_second_pass_through_one_epoch_is_found(count: int, found: list[str]) -> None:
    """A shuffling sampler that begins again without another epoch repeats its order."""
    assert ranks(NAME, [served("passes", count, 1, at="1 rank", detail="ranks")]) == found


def test_ranks_of_different_length_are_a_note() -> None:
    """Training hangs at the end of the shortest, unless the loop knows of it."""
    (finding,) = judged(NAME, [served("uneven", 2, 10, at="4 ranks", detail="ranks")])
    assert finding.rank.value == "note"
    assert finding.measured == "10 to 12 batches"
