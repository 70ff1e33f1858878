"""What an accuracy that is said may be about: the predictions of an evaluation, or of an epoch."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from trainguard.events.base import Event
from trainguard.events.fit import Score
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations import EVALUATION
from trainguard.invariants.loop.wording import events

TRUE = ("right", "all", "whole")  # ways of counting that are no mistake
_STEADY = 0.9  # of the steps have a call at a place that a training goes through
_COARSE = 0.02  # of the value: what is rounded more than that says nothing,
_TWO_DIGITS = 0.005  # unless it has two digits at least
_TRAINING = {"train", "training"}
_BESIDE = {"acc", "accs", "accuracy", "mean", "avg", "average", "running", "epoch", "batch", "step"}
_BESIDE |= {"set", "metrics", "total", "model"}


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
    before: tuple[Score, ...] = ()  # those of the same place up to then
    steady: bool = False  # whether nearly every step has a call there


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
    return meant and words <= EVALUATION | _TRAINING | _BESIDE


def means_evaluation(name: str) -> bool:
    """Say whether a name is about an evaluation."""
    return bool(set(re.split(r"[^a-z]+", name.lower())) & EVALUATION)


def sound_scores(trace: Trace[Event]) -> list[list[Score]]:
    """Return the scores of each place where it is known what belongs together."""
    places: dict[tuple[str, bool], list[Score]] = {}
    for one in events(trace, Score):
        places.setdefault((one.source, one.evaluation), []).append(one)
    return [
        sorted(own, key=lambda one: one.clock)
        for own in places.values()
        if all(one.ways and (one.evaluation or one.calls == 1) for one in own)
    ]


def bases_of(own: Sequence[Score], start: int, said: Logged) -> Iterator[Basis]:
    """Yield what was counted at one place since a name was said before, up to where it is said."""
    before = [one for one in own if one.clock < said.clock]
    if not before:
        return
    last, source = before[-1], before[-1].source
    if last.evaluation:
        if last.step == said.step:
            yield Basis(source, "evaluation", (last,), add_up([last]), tuple(before[:-1]))
        return
    gaps = [b.step - a.step for a, b in pairwise(own)]
    usual = max(1, Counter(gaps).most_common(1)[0][0] if gaps else 1)
    since = [one for one in before if one.clock > start]
    if said.step - last.step > usual or not since:
        return
    steady = len(own) >= _STEADY * (own[-1].step / usual)
    yield Basis(source, "last", (last,), add_up([last]), steady=steady)
    if len(since) > 1 and all(b.step - a.step <= usual for a, b in pairwise(before)):
        earlier = tuple(before[: -len(since)])
        yield Basis(source, "since", tuple(since), add_up(since), earlier, steady)


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
    measured = any(basis.part == "evaluation" for basis in bases)
    for basis in bases:
        if not (measured and basis.steady and means_evaluation(said.name)):
            yield from _truths_of(basis)


def _truths_of(basis: Basis) -> Iterator[float]:
    """Yield what may truly be said of a place."""
    for name in TRUE:
        count = basis.counts.get(name)
        if count is not None:
            yield from (count.share, count.mean)
    every = (*basis.before, *basis.scores)
    if basis.part == "evaluation":
        yield max(add_up([one])["right"].share for one in every)
    else:  # the mean so far may be meant
        yield add_up(every)["right"].share
    for one in basis.scores:
        yield from (way[3] for way in one.ways if way[0] in TRUE)
