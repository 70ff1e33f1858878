"""Judgement of the classes of an evaluation: whether they are those that were learned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import number, portion
from trainguard.events.base import Event
from trainguard.events.fit import Score
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations.accuracy_bases import (
    Count,
    add_up,
    means_accuracy,
    means_evaluation,
)
from trainguard.invariants.loop.wording import events, place_of_log

_FEW = 3  # values, or evaluations: one may be of a training that has hardly begun
_ROWS = 40  # of an evaluation: 32 of 40 in one order by chance come once in 10,000 times
_RIGHT = 0.8  # would be right, by other names; of two classes, what is wrong
_GAIN = 0.2  # of the rows, that other names make right: at least a class of five
_EVEN = 0.75  # of the targets are of one class at most: rarer ones say little of the names
_NEAR = 0.1  # of what is said: it is about these predictions, by the numbers as they are
_LEARNED = 0.8  # of a training batch is right, where two classes were learned


@dataclass(frozen=True, slots=True)
class _Renamed:
    """An evaluation, or what is said of it, in which classes have other names."""

    where: str
    measured: str
    allowed: str
    event: Event
    certain: bool = True


def _miss_evidence(trace: Trace[Event]) -> str:
    """Say what is missing to be judged: evaluations at one place, or what is said of them."""
    scores = _scores(trace)
    judged = any(_count(own[-1]).of >= _ROWS for own in _places(scores))
    said = _knows_two(scores) and bool(_names(trace))
    return "" if judged or said else "no predictions of classes were seen in three evaluations"


@invariant("loop", evidence=_miss_evidence)
def classes_keep_their_numbers(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each class has the same index in evaluation as in training.

    Judges: the latest of 3 evaluations or more whose predictions and targets are known, of 40 rows
        or more: whether each class is mostly taken for one other, no two for the same, so that 80 %
        (limit) of the rows would be right by other numbers, and a fifth or more are not as it is;
        and an accuracy that is said of an evaluation of two classes: whether the last 3 values are
        below 20 %, where training batches are 80 % right. A note where another evaluation is right,
        or where the targets only lie beside the input, and no accuracy is said of them.
    Allows: models that know no better than chance, or name one class for all; few rows; accuracies
        with other words in their name, as robust ones.
    Misses: one class of many that has another number; numbers that most classes share.
    Why: numbers that are given anew for each set of data, by the order of folders or of what comes
        in it, make every prediction of a good model wrong.
    Source: weecology/DeepForest pull 1147; ultralytics/ultralytics issue 13936.
    """
    right = trace.limit("classes_keep_their_numbers", _RIGHT)
    scores = _scores(trace)
    said = _names(trace)
    found = [*_find_renamed(scores, said, right)] or [*_find_said(said, scores, 1 - right)]
    for one in found[:1]:
        yield Finding(
            f"classes have other indices in an evaluation of `{trace.subject}` than in training",
            one.where,
            one.measured,
            one.allowed,
            why="map each class to one index, from the training data, and use it for all data sets",
            rank=Rank.BROKEN if one.certain else Rank.NOTE,
            event=one.event,
        )


def _scores(trace: Trace[Event]) -> list[Score]:
    """Return the scores of which it is known what was right."""
    return [one for one in events(trace, Score) if any(way[0] == "right" for way in one.ways)]


def _places(scores: Sequence[Score]) -> list[list[Score]]:
    """Return the latest evaluations of each place that has enough."""
    places: dict[str, list[Score]] = {}
    for one in scores:
        if one.evaluation:
            places.setdefault(one.source, []).append(one)
    return [own[-_FEW:] for own in places.values() if len(own) >= _FEW]


def _count(score: Score) -> Count:
    """Return how many predictions of an evaluation are right."""
    return add_up([score])["right"]


def _names(trace: Trace[Event]) -> dict[str, list[Logged]]:
    """Return the accuracies that are said of evaluations, three of each or more."""
    names: dict[str, list[Logged]] = {}
    for one in events(trace, Logged):
        if means_accuracy(one.name) and means_evaluation(one.name):
            names.setdefault(one.name, []).append(one)
    return {name: own for name, own in names.items() if len(own) >= _FEW}


def _late(said: Sequence[Logged]) -> list[float]:
    """Return the latest values that are said under a name, as shares."""
    unit = 100.0 if max(one.value for one in said) > 1 else 1.0
    return [one.value / unit for one in said[-_FEW:]]


def _find_renamed(
    scores: Sequence[Score], said: dict[str, list[Logged]], least: float
) -> Iterator[_Renamed]:
    """Yield the places whose latest evaluations would be right by other names."""
    places = _places(scores)
    known = any(_count(one).share >= least for own in places for one in own)
    for own in places:
        if all(_is_renamed(one, least) for one in own):
            # What is found beside an input may be held against clusters, whose numbers are free.
            meant = not own[-1].source.startswith("of ") or any(
                max(_late(each)) <= _count(own[-1]).share + _NEAR for each in said.values()
            )
            yield _describe(own[-1], certain=meant and not known)


def _describe(score: Score, *, certain: bool) -> _Renamed:
    """Return what is said of an evaluation."""
    count = _count(score)
    other = count.of - count.right if isnan(score.renamed) else score.renamed
    text = portion(count.right, count.of, "predictions") + " right"
    allowed = portion(other, count.of) + ", as they are by other numbers of the classes"
    return _Renamed("the latest evaluation", text, allowed, score, certain=certain)


def _is_renamed(score: Score, least: float) -> bool:
    """Say whether most rows of an evaluation are right, but for the numbers of their classes."""
    count = _count(score)
    if count.of < _ROWS:
        return False
    if isnan(score.renamed):  # of two classes it is known how many come, and what is wrong
        even = 0 < score.commonest <= _EVEN * count.of
        return even and score.classes == 2 and count.share <= 1 - least
    return score.renamed >= max(least * count.of, count.right + _GAIN * count.of)


def _knows_two(scores: Sequence[Score]) -> bool:
    """Say whether the latest training batches tell two classes apart."""
    learned = [one for one in scores if not one.evaluation][-_FEW:]
    return len(learned) == _FEW and all(
        one.classes == 2 and one.sole and _count(one).share >= _LEARNED for one in learned
    )


def _find_said(
    names: dict[str, list[Logged]], scores: Sequence[Score], most: float
) -> Iterator[_Renamed]:
    """Yield accuracies of two classes that are far below one half, where training batches know."""
    for name, own in names.items() if _knows_two(scores) else ():
        if all(0 < value <= most for value in _late(own)):
            where = place_of_log(name, own[-1].channel, own[-1].step)
            text = number(_late(own)[-1]) + " is right"
            yield _Renamed(where, text, number(0.5) + " by chance", own[-1])
