"""What an accuracy that is said may be about: the predictions of an evaluation, or of an epoch."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import nan
from typing import NamedTuple

from trainguard.core.names import EVALUATION, TRAINING, words_of
from trainguard.events.base import Event
from trainguard.events.fit import Score
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import events

TRUE = ("right", "whole")  # ways of counting that are no mistake
PADDED = ("all", "padded", "filled")  # those that are none where little is left out
FAR = 0.1  # from the truth: nearer to it a wrong count is not worth a word
_HALVED = 2.0  # times the errors that are said: half of them are hidden, and
_CLEAR = 0.02  # of all are more than rounding
_STEADY = 0.9  # of the steps have a call at a place that a training goes through
_COARSE = 0.02  # of the value: what is rounded more than that says nothing,
_TWO_DIGITS = 0.005  # unless it has two digits at least
_BESIDE = {"acc", "accs", "accuracy", "mean", "avg", "average", "running", "epoch", "batch", "step"}
_BESIDE |= {
    "set",
    "metrics",
    "total",
    "model",
    "tag",
    "tags",
    "token",
    "tokens",
    "overall",
    "pixel",
}


class Count(NamedTuple):
    """What is right by one way of counting: of how many, and as the mean of the calls."""

    right: float
    of: float
    mean: float

    @property
    def share(self) -> float:
        """The share of all that is right."""
        return self.right / max(1.0, self.of)


@dataclass(frozen=True, slots=True)
class Basis:
    """What an accuracy may be about: stretches of one place that were added up."""

    place: str
    part: str  # "evaluation", "last" or "since"
    scores: tuple[Score, ...]
    counts: dict[str, Count]
    so_far: Count  # what is right of these and of those of the same place before them
    best: float  # the largest share of any of those
    goes_on: bool  # whether there are any before them
    steady: bool  # whether nearly every step has a call there


@dataclass(frozen=True, slots=True)
class Closeness:
    """How near a value must be to another."""

    near: float

    def __call__(self, said: Logged, value: float) -> bool:
        """Say whether what was said is this value, or that in percent, but for rounding."""
        allowed = self.near * abs(value)
        return any(
            abs(said.value / unit - value) <= allowed + said.rounding / unit for unit in (1, 100)
        )


def is_sharp(said: Logged) -> bool:
    """Say whether a value was written with enough digits to be told from another."""
    return said.rounding <= max(_TWO_DIGITS, _COARSE * abs(said.value))


def means_accuracy(name: str) -> bool:
    """Say whether a name means a plain accuracy, and not the best, a balanced or another one."""
    words = set(filter(None, re.split(r"[^a-z0-9]+", name.lower())))
    meant = bool(words & {"acc", "accs", "accuracy"})
    return meant and words <= EVALUATION | TRAINING | _BESIDE


def means_evaluation(name: str) -> bool:
    """Say whether a name is about an evaluation."""
    return not EVALUATION.isdisjoint(words_of(name))


class ScoredPlace:
    """
    The scores of one place in their order, and what they add up to, from the first one on.

    so_far: what was right up to each score; best: the largest share of them. usual: the steps from
    one score to the next; unbroken: how many follow each other without a longer gap.
    """

    def __init__(self, scores: Sequence[Score]) -> None:
        self.scores = sorted(scores, key=lambda one: one.clock)
        self.clocks = [one.clock for one in self.scores]
        each = [add_up([one])["right"] for one in self.scores]
        self.so_far = list(accumulate(each, _join))
        self.best = list(accumulate((count.share for count in each), max))
        gaps = [b.step - a.step for a, b in pairwise(self.scores)]
        self.usual = max(1, Counter(gaps).most_common(1)[0][0] if gaps else 1)
        self.unbroken = 1 + next((i for i, gap in enumerate(gaps) if gap > self.usual), len(gaps))
        self.steady = len(self.scores) >= _STEADY * (self.scores[-1].step / self.usual)

    def goes_on_after(self, said: Logged) -> bool:
        """Say whether it is an evaluation that was not over yet, or two that nothing parts."""
        end = bisect_left(self.clocks, said.clock)
        around = self.scores[max(0, end - 1) : end + 1] if end else []
        return len(around) > 1 and all(one.evaluation and one.step == said.step for one in around)

    def basis(self, part: str, begin: int, end: int) -> Basis:
        """Return what is known of some scores; the last one alone has nothing before it."""
        scores = tuple(self.scores[begin:end])
        counts = add_up(scores)
        own, alone = counts["right"], part == "last"
        return Basis(
            scores[-1].source,
            part,
            scores,
            counts,
            so_far=own if alone else self.so_far[end - 1],
            best=own.share if alone else self.best[end - 1],
            goes_on=begin > 0 and not alone,
            steady=self.steady and part != "evaluation",
        )


def _join(first: Count, second: Count) -> Count:
    """Return what is right in both."""
    return Count(first.right + second.right, first.of + second.of, nan)


def score_places(trace: Trace[Event]) -> list[ScoredPlace]:
    """Return the places where it is known what belongs together."""
    places: dict[tuple[str, bool], list[Score]] = {}
    for one in events(trace, Score):
        places.setdefault((one.source, one.evaluation), []).append(one)
    return [
        ScoredPlace(own)
        for own in places.values()
        if all(_is_counted(one) and (one.evaluation or one.calls == 1) for one in own)
    ]


def _is_counted(one: Score) -> bool:
    """Say whether it is known what was right."""
    return any(name == "right" for name, *_ in one.ways)


def bases_of(own: ScoredPlace, start: int, said: Logged) -> Iterator[Basis]:
    """Yield what was counted at one place since a name was said before, up to where it is said."""
    end = bisect_left(own.clocks, said.clock)
    if not end:
        return
    last = own.scores[end - 1]
    if last.evaluation:
        if last.step == said.step:
            yield own.basis("evaluation", end - 1, end)
        return
    begin = bisect_right(own.clocks, start)
    if said.step - last.step > own.usual or begin >= end:
        return
    yield own.basis("last", end - 1, end)
    if end - begin > 1 and end <= own.unbroken:
        yield own.basis("since", begin, end)


def add_up(scores: Sequence[Score]) -> dict[str, Count]:
    """Return the sums of what was counted, for the ways that all of them have."""
    names = set.intersection(*({way[0] for way in one.ways} for one in scores))
    calls = sum(one.calls for one in scores)
    rows = [(way, one.calls) for one in scores for way in one.ways]
    return {
        name: Count(
            sum(way[1] for way, _ in rows if way[0] == name),
            sum(way[2] for way, _ in rows if way[0] == name),
            sum(way[3] * own for way, own in rows if way[0] == name) / calls,
        )
        for name in sorted(names)
    }


def truths(said: Logged, bases: Sequence[Basis]) -> Iterator[float]:
    """Yield what may truly be said; of a training only where no evaluation is meant."""
    for basis in _meant(said, bases):
        for count in (basis.counts[name] for name in TRUE if name in basis.counts):
            yield from (count.share, count.mean)
        # The best so far may be meant, or in training the mean so far.
        yield basis.best if basis.part == "evaluation" else basis.so_far.share
        for one in basis.scores:
            yield from (way[3] for way in one.ways if way[0] in TRUE)


def near_truths(said: Logged, bases: Sequence[Basis]) -> Iterator[float]:
    """Yield what counts padding too, where that makes little of a difference."""
    for basis in _meant(said, bases):
        for name in PADDED:
            count, right = basis.counts.get(name), basis.counts["right"]
            if count is not None and count != right and not is_far(basis, name):
                yield from (count.share, count.mean)


def _meant(said: Logged, bases: Sequence[Basis]) -> list[Basis]:
    """Return what a value may be about: an evaluation, where one is meant and there is one."""
    measured = any(basis.part == "evaluation" for basis in bases)
    plain = not (measured and means_evaluation(said.name))
    return [basis for basis in bases if plain or not basis.steady]


def is_far(basis: Basis, name: str) -> bool:
    """Say whether a way of counting makes a difference: to the share, or to that of errors."""
    said, right = basis.counts[name].share, basis.counts["right"].share
    return abs(said - right) >= (FAR if 1 - right < _HALVED * (1 - said) else _CLEAR)


def commonest(basis: Basis) -> float:
    """Return the share of the commonest class."""
    return sum(one.commonest for one in basis.scores) / max(1.0, basis.counts["right"].of)
