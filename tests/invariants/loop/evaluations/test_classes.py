"""The judge of the classes of an evaluation."""

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Rank
from trainguard.events.fit import Score
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace

NAN = float("nan")


def scores(
    right: float,
    *,
    renamed: float = NAN,
    classes: int = 5,
    of: float = 100,
    evaluation: bool = True,
    source: str = "train.py:30",
    commonest: float = 60,
) -> list[Score]:
    """Write three scores of a place."""
    return [
        Score(
            step=step,
            source=source,
            clock=10 * step,
            evaluation=evaluation,
            classes=classes,
            sole=True,
            ways=(("right", right, of, right / of),),
            commonest=commonest,
            renamed=renamed,
        )
        for step in (10, 20, 30)
    ]


def said(*values: float, name: str = "val_acc") -> list[Logged]:
    """Write what is said after them."""
    return [
        Logged(name=name, value=value, step=10 * n + 10, clock=100 * n + 105)
        for n, value in enumerate(values)
    ]


TRAINED = scores(95, classes=2, evaluation=False, source="train.py:20")


@pytest.mark.parametrize(
    ("events", "ranks"),
    [
        (scores(0, renamed=95), [Rank.BROKEN]),
        (scores(35, renamed=95), [Rank.BROKEN]),  # three classes of five
        (scores(80, renamed=95), []),  # one of them
        (scores(30, renamed=60), []),  # hardly more by other numbers
        (scores(90, renamed=92), []),
        (scores(0, renamed=30, of=35), []),  # a few rows
        (scores(5, classes=2), [Rank.BROKEN]),
        (scores(30, classes=2), []),
        (scores(5, classes=2, commonest=90), []),  # nearly all are of one class
        ([*scores(0, renamed=95), *scores(95, renamed=95, source="train.py:50")], [Rank.NOTE]),
        (scores(0, renamed=95, source="of Net"), [Rank.NOTE]),  # they may be clusters
        ([*scores(0, renamed=95, source="of Net"), *said(0, 0, 0)], [Rank.BROKEN]),
        ([*scores(0, renamed=95, source="of Net"), *said(90, 95, 94)], [Rank.NOTE]),
        ([*TRAINED, *said(0.06, 0.05, 0.05)], [Rank.BROKEN]),
        ([*TRAINED, *said(6.0, 5.0, 5.0)], [Rank.BROKEN]),  # in percent
        ([*TRAINED, *said(0.0, 0.0, 0.0)], []),  # for another judge
        ([*TRAINED, *said(0.05, 0.04, 0.3)], []),
        ([*TRAINED, *said(0.05, 0.05, 0.05, name="robust_val_acc")], []),
        ([*TRAINED, *said(0.05, 0.05, 0.05, name="train_acc")], []),
        ([*scores(60, classes=2, evaluation=False), *said(0.1, 0.1, 0.1)], []),
    ],
)
def test_what_other_numbers_make_right_is_found(judged, events, ranks) -> None:
    """In predictions, or in what is said of two classes."""
    found = judged("classes_keep_their_numbers", events)
    assert [finding.rank for finding in found] == ranks


def test_the_finding_says_how_many(judged) -> None:
    """As it is, and by other numbers."""
    (finding,) = judged("classes_keep_their_numbers", scores(0, renamed=95))
    assert finding.measured == "0 of 100 predictions right"
    assert finding.allowed == "95 of 100, as they are by other numbers of the classes"


@pytest.mark.parametrize(
    ("events", "judged_at_all"),
    [
        (scores(0, renamed=95), True),
        (scores(0, renamed=95)[:2], False),
        (scores(0, renamed=30, of=35), False),
        ([*TRAINED, *said(0.05, 0.05, 0.05)], True),
        (said(0.05, 0.05, 0.05), False),
    ],
)
def test_few_evaluations_are_nothing_to_judge(events, judged_at_all) -> None:
    """Nor is an accuracy of nobody knows how many classes."""
    (made,) = find_invariants("loop.classes_keep_their_numbers")
    assert bool(made.evidence(Trace("train", tuple(events)))) is not judged_at_all
