"""The blessed curves of the reference trainings: mistakes leave the band, refactorings do not."""

import pytest

from fixtures.edits import MISTAKES, REFACTORINGS, TRAININGS, Edit, Edits, findings


def cases(edits: Edits) -> list:
    """Return a test case for each edit of each training that it is for."""
    return [
        pytest.param(training, edit, id=f"{training.removeprefix('guard_')}-{name}")
        for name, of in edits.items()
        for training, edit in of.items()
    ]


def in_turn(edits: Edits) -> list:
    """Return one case for each edit, the trainings taking turns; benchmarks/curves.py runs all."""
    own = [cases({name: of}) for name, of in edits.items()]
    return [of[turn % len(of)] for turn, of in enumerate(own)]


@pytest.mark.parametrize(("training", "edit"), cases(MISTAKES))
def test_a_mistake_leaves_the_band(training: str, edit: Edit) -> None:
    """It is found, in the loss or in the gradient norm."""
    assert {finding.rank.value for finding in findings(training, edit)} == {"broken"}


@pytest.mark.parametrize(("training", "edit"), in_turn(REFACTORINGS))
def test_a_refactoring_stays_in_the_band(training: str, edit: Edit) -> None:
    """Neither the loss nor the gradient norm leaves its band."""
    assert findings(training, edit) == ()


@pytest.mark.parametrize("training", TRAININGS)
def test_there_are_ten_refactorings(training: str) -> None:
    """Each training is refactored in ten ways at least."""
    assert sum(training in of for of in REFACTORINGS.values()) >= 10
