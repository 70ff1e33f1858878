"""What is said of loaders that are made a second time."""

import pytest

from tests.invariants.loader.tried import judged, served

ORDER, RESUME = "order_is_reproducible", "resume_continues_the_epoch"


def test_the_same_batches_are_passed() -> None:
    """Two splits that come again as they were give nothing."""
    assert judged(ORDER, [served("repeat", reference=50), served("repeat", reference=3)]) == []


@pytest.mark.parametrize(
    ("detail", "cause"), [("order", "another order"), ("contents", "not seeded")]
)
def test_another_batch_is_found(detail: str, cause: str) -> None:
    """The message says where the runs part, and whether it is the order."""
    events = [served("repeat", 3, 50, at="batch 3", detail=detail)]
    (finding,) = judged(ORDER, events)
    assert finding.at == "split 'train', batch 3"
    assert cause in finding.why


def test_another_number_of_batches_is_found() -> None:
    """Runs that do not part may still end at different places."""
    (finding,) = judged(ORDER, [served("repeat", reference=5, detail="number")])
    assert finding.allowed == "the same number of batches"


def test_two_splits_are_one_finding() -> None:
    """What is true of validation too is not said twice."""
    event = served("repeat", 0, 50, at="batch 0", detail="order")
    assert len(judged(ORDER, [event, event])) == 1


def test_a_resume_that_goes_on_is_passed() -> None:
    """All of the rest, and an epoch of the same length after it."""
    events = [served("rest", 8, 8, at="epoch 0, after batch 7"), served("next", 16, 16)]
    assert judged(RESUME, events) == []


@pytest.mark.parametrize(
    ("detail", "cause"),
    [
        ("again", "started again"),
        ("skipped", "left out"),
        ("repeated", "a second time"),
        ("order", "same samples"),
        ("others", "another order"),
        ("ended", "early or late"),
    ],
)
def test_a_resume_that_goes_wrong_is_found(detail: str, cause: str) -> None:
    """The message says in which way."""
    events = [served("rest", 0, 8, at="epoch 1, after batch 3", detail=detail)]
    (finding,) = judged(RESUME, events)
    assert finding.at == "split 'train', epoch 1, after batch 3"
    assert finding.measured.startswith("0 of 8 batches")
    assert cause in finding.why


def test_a_state_that_cannot_be_saved_is_found() -> None:
    """What was raised is what was measured."""
    events = [served("state", at="epoch 0, after batch 7", detail="TypeError: cannot pickle")]
    (finding,) = judged(RESUME, events)
    assert finding.measured == "TypeError: cannot pickle"


def test_a_shorter_epoch_after_it_is_found() -> None:
    """Batches that are skipped once more show in the length."""
    (finding,) = judged(RESUME, [served("next", 6, 12, detail="length")])
    assert (finding.measured, finding.allowed) == ("6 batches", "12 batches")


def test_two_saves_that_go_wrong_are_one_finding() -> None:
    """The second epoch is not said again."""
    events = [served("rest", 0, 8, at=f"epoch {e}", detail="again") for e in (0, 1)]
    assert len(judged(RESUME, events)) == 1
