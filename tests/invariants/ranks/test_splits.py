"""What is judged of the parts of one data set that several processes learn from and hold out."""

import pytest

from tests.invariants.ranks.test_agreement import LOOKS, course
from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.ranks import RankCourse, SplitSamples
from trainguard.events.trace import Trace

MADE = find_invariants("ranks.splits_are_the_same")[0]
FIRST, LAST, ALL, NONE = "1111110000", "0000001111", "1111111111", "0000000000"


def replicas(count: int = 2) -> list[RankCourse]:
    """Write what so many replicas tell of their steps."""
    return [course(rank, count) for rank in range(count)]


def splits(*pairs: tuple[str, str], data: str = "320 ab") -> list[SplitSamples]:
    """Write what each process learns from, and evaluates."""
    return [
        SplitSamples(rank=rank, data=data, learned=learned, evaluated=evaluated, source="a.py:3")
        for rank, (learned, evaluated) in enumerate(pairs)
    ]


def judge(*events: RankCourse | SplitSamples) -> list[Finding]:
    """Judge what some processes have told."""
    trace = Trace("train", tuple(events))
    found = list(MADE.judge(trace))
    assert not (found and MADE.evidence(trace))
    return found


@pytest.mark.parametrize(
    "told",
    [
        [(FIRST, LAST), (LAST, FIRST)],
        [(FIRST, LAST), (LAST, NONE)],
        [(FIRST, LAST), (ALL, ALL)],
    ],
)
def test_samples_that_another_process_learns(told: list[tuple[str, str]]) -> None:
    """Whatever that one evaluates itself, and if it evaluates nothing."""
    (found,) = judge(*replicas(), *splits(*told))
    assert found.at.startswith("what rank 0 holds out, and rank 1 learns from")
    assert "4 of 4 samples" in str(found.measured)
    assert found.source == "a.py:3"


@pytest.mark.parametrize(
    "told",
    [
        [(FIRST, LAST), (FIRST, LAST)],
        [(FIRST, LAST), (FIRST, NONE)],
        [("1110000000", "0000001100"), ("0001110000", "0000000011")],
        [(FIRST, LAST), ("1111111110", "0000000001")],
        [(FIRST, FIRST), (FIRST, LAST)],
    ],
)
def test_splits_that_fit(told: list[tuple[str, str]]) -> None:
    """The same in all, parts of them, a few samples, and what a process itself has learned."""
    assert judge(*replicas(), *splits(*told)) == []


def test_processes_that_have_nothing_in_common() -> None:
    """They are no replicas, or have other data."""
    apart = [(FIRST, LAST), (LAST, FIRST)]
    assert judge(course(0, 2), *splits(*apart)) == []
    own = tuple((7 * look, 11 * look + 1) for look in LOOKS)
    norms = tuple(2.0 + 0.01 * i for i in range(24))
    alone = [course(0, replicas=""), course(1, replicas="", sums=own, norms=norms)]
    assert judge(*alone, *splits(*apart)) == []
    third = course(2, replicas="", sums=own, norms=norms)
    assert judge(*replicas(), third, *splits((FIRST, LAST), (FIRST, LAST), (LAST, NONE))) == []
    one, other = splits(*apart), splits(*apart, data="320 cd")
    assert judge(*replicas(), one[0], other[1]) == []


def test_what_is_missing_is_told() -> None:
    """Replicas, or a data set that several of them are served."""
    told = Trace("train", tuple(replicas()))
    assert (
        MADE.evidence(told) == "no two replicas learn from one data set and hold out a part of it"
    )
    assert "replica" in MADE.evidence(Trace("train", (course(0, 2), *splits((FIRST, LAST)))))
