"""What judgements of a training run share."""

from math import inf, isnan, nan

import pytest

from trainguard.events.loop import Read, Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop import wording


def test_steps_are_told_apart_by_their_optimizer(steps) -> None:
    """Each optimizer has its course, in the order of their first steps; skipped ones are kept."""
    run = [
        *steps(3, skipped=lambda i: i == 1),
        *steps(2, optimizer="Adam", span=9),
        Read(source=""),
    ]
    sgd, adam = wording.courses(Trace("train", tuple(run)))
    assert (sgd.optimizer, len(sgd.every), len(sgd.steps)) == ("SGD", 3, 2)
    assert (adam.at(adam.every[1]), adam.alone) == ("step 1 of Adam", False)
    main = wording.main_course(Trace("train", tuple(run)))
    assert main is not None
    assert main.optimizer == "Adam"
    assert wording.main_course(Trace("train", ())) is None
    (alone,) = wording.courses(Trace("train", tuple(run[:3])))
    assert (alone.at(alone.every[1]), alone.alone) == ("step 1", True)


@pytest.mark.parametrize(("name", "expected"), [("by hand", True), ("SGD", False)])
def test_steps_without_an_optimizer_are_known_as_such(name: str, expected: bool, steps) -> None:
    """A recorder names them so."""
    (course,) = wording.courses(Trace("train", tuple(steps(1, optimizer=name))))
    assert course.by_hand is expected


def test_shares_are_of_the_steps_that_rows_stand_for(steps) -> None:
    """A thinned row counts for all that it stands for."""
    run = steps(4, span=lambda i: 1 if i else 7)
    assert wording.count(run) == 10
    assert wording.share(run, lambda s: s.step > 0) == 0.3
    assert isnan(wording.share([], lambda s: True))
    assert wording.mostly(run, lambda s: s.step == 0, 0.69)
    assert not wording.mostly(run, lambda s: s.step == 0, 0.7)
    assert not wording.mostly([], lambda s: True)
    assert wording.most_of(run[:1], run)
    assert not wording.most_of([], [])
    assert wording.tally(run[:1], run) == "about 7 of 10 steps"
    assert wording.tally(run, run) == "10 of 10 steps"
    assert wording.tally(run[1:2], run[1:]) == "1 of 3 steps"


def test_parts_of_a_run(steps) -> None:
    """Quarters share no step and leave none out; a part is never empty."""
    run = steps(10)
    quarters = [wording.stretch(run, part / 4, (part + 1) / 4) for part in range(4)]
    assert [step.step for quarter in quarters for step in quarter] == list(range(10))
    assert [len(quarter) for quarter in quarters] == [2, 3, 2, 3]
    short = steps(2)
    assert [step.step for step in wording.stretch(short, 0, 0.1)] == [0]
    assert [step.step for step in wording.stretch(short, 0.9, 1)] == [1]
    assert wording.stretch([], 0, 1) == ()


def test_stretches_and_firsts(steps) -> None:
    """The longest stretch in a row is found, and the first step of a kind."""
    run = steps(10, norm=lambda i: 0.0 if i in (1, 4, 5, 6, 9) else 1.0)
    assert [s.step for s in wording.longest(run, lambda s: s.norm == 0)] == [4, 5, 6]
    assert wording.longest(run, lambda s: s.norm > 5) == ()
    assert wording.first(run, lambda s: s.norm == 0) is run[1]
    assert wording.first(run, lambda s: s.norm > 5) is None


def test_numbers() -> None:
    """What is unknown or infinite is left out of a median."""
    assert wording.middle([nan, 3.0, inf, 1.0]) == 2.0
    assert isnan(wording.middle([nan]))
    assert wording.percent(0.975) == "97.5 %"


@pytest.mark.parametrize(("word", "place"), [("zero", 0), ("backward", 4), ("clip", -1)])
def test_the_last_place_of_a_word(word: str, place: int) -> None:
    """A word may stand in the order of a window several times, or not at all."""
    order = ("zero", "forward", "backward", "forward", "backward")
    assert wording.last_word(Step(step=0, order=order), word) == place
