"""What judgements of several processes share: which are replicas, who is odd, how it is told."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from trainguard.core.measure import Place, at_step, ranks_text
from trainguard.events.base import Event
from trainguard.events.ranks import RankCourse, RankRun
from trainguard.events.trace import Trace

# Replicas add up the same numbers in the same order, so that their norms are alike to the last
# bit; devices of several kinds round a sum differently, by a part in 1e5 at the very most.
ROUNDING = 1e-4
_AVERAGED = 8  # norms of gradients, all of them others, that are the same in all processes
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """
    The steps of one optimizer in processes that are replicas of each other, by their ranks.

    declared: whether DistributedDataParallel says so; otherwise they held the same for a while,
        or step with the same gradients.
    """

    optimizer: str
    courses: tuple[RankCourse, ...]
    declared: bool

    @property
    def in_step(self) -> bool:
        """Whether all have made the same steps, so that those of one number belong together."""
        return len({course.made for course in self.courses}) == 1

    def at(self, step: int, ranks: Sequence[int]) -> Place:
        """Return where: the step, and the processes."""
        alone = Place("", step=step, rank=ranks[0] if len(ranks) == 1 else None)
        return at_step(step) + f" of {self.optimizer}, {ranks_text(ranks)}" + alone


def runs(trace: Trace[Any]) -> list[RankRun]:
    """Return what is known of each process."""
    return [event for event in trace if isinstance(event, RankRun)]


def optimizers(trace: Trace[Any]) -> list[list[RankCourse]]:
    """Return the steps of each optimizer in all processes."""
    return group_by(trace, RankCourse, lambda course: course.optimizer)


def group_by(trace: Trace[Any], kind: type[E], key: Callable[[E], Hashable]) -> list[list[E]]:
    """Return the events of a kind that are of the same, as several processes told of it."""
    groups: dict[Hashable, list[E]] = {}
    for event in trace:
        if isinstance(event, kind):
            groups.setdefault(key(event), []).append(event)
    return list(groups.values())


def replicas(trace: Trace[Any], *, lone: bool = False) -> Iterator[ReplicaGroup]:
    """
    Yield the processes that are to hold the same parameters, two or more at a time.

    Those of which DistributedDataParallel makes replicas; without it, those that did hold the same
    after some step, or make all their steps with the same gradients. lone: whether also those that
    may go their own way for a while.
    """
    for courses in optimizers(trace):
        whole = [c for c in courses if c.looks and not c.sharded and (lone or not c.lone)]
        groups: dict[Any, list[RankCourse]] = {}
        for course in whole:
            groups.setdefault((course.replicas, course.names), []).append(course)
        for (declared, _), own in groups.items():
            if len(own) > 1 and (declared or _agreed(own) or _are_averaged(own)):
                yield ReplicaGroup(own[0].optimizer, tuple(own), bool(declared))


def _agreed(courses: Sequence[RankCourse]) -> bool:
    """Say whether processes held the same parameters after some step."""
    later = min(sum(look > 0 for look in course.looks) for course in courses)
    if not later:
        return False
    first = courses[0]
    return any(
        all(c.looks[i : i + 1] == (look,) and c.sums[i] == first.sums[i] for c in courses)
        for i, look in enumerate(first.looks)
        if look > 0
    )


def _are_averaged(courses: Sequence[RankCourse]) -> bool:
    """Say whether processes step with the same gradients: somebody averages them by hand."""
    rows = list(zip(*(course.norms for course in courses), strict=False))
    alike = all(len(set(row)) == 1 for row in rows)
    return alike and len({row[0] for row in rows}) >= _AVERAGED


def evidence(trace: Trace[Any]) -> str:
    """Return why no process is known to be a replica of another one, or nothing."""
    courses = [course for own in optimizers(trace) for course in own]
    if any(True for _ in replicas(trace)):
        return ""
    if any(course.sharded for course in courses):
        return "the parameters are sharded: each process has a part of them"
    if any(course.lone for course in courses):
        return "each process may go its own way for a while (join, local SGD)"
    if not any(course.looks for course in courses):
        return "the processes are in no group"
    return "no two processes are replicas of each other"


def odd_ones(values: Sequence[Any], ranks: Sequence[int]) -> list[int]:
    """Return the ranks whose value is not that of most; of equally many, not that of the first."""
    counts = Counter(values)
    usual = max(counts, key=lambda value: (counts[value], value == values[0]))
    return [rank for rank, value in zip(ranks, values, strict=True) if value != usual]


def partings(
    courses: Sequence[RankCourse], column: Callable[[RankCourse], Sequence[Any]]
) -> tuple[list[int], int]:
    """Return at which places of a column the processes differ, and how many they all have."""
    columns = [column(course) for course in courses]
    length = min(map(len, columns))
    different = [
        c for c in columns[1:] if c is not columns[0] and c[:length] != columns[0][:length]
    ]
    places = [i for i in range(length) if any(c[i] != columns[0][i] for c in different)]
    return places, length


def gradient_partings(group: "ReplicaGroup") -> tuple[list[int], int]:
    """Return at which steps the gradients of replicas differ by more than rounding, of how many."""
    if not (group.declared and group.in_step):
        return [], 0
    places, length = partings(group.courses, lambda course: course.norms)
    rows = ([course.norms[i] for course in group.courses] for i in places)
    return [i for i, row in zip(places, rows, strict=True) if spread(row) > ROUNDING], length


def spread(values: list[Any]) -> float:
    """Return how far numbers are apart, as a share of the largest; 0 where one is not known."""
    if any(isinstance(value, tuple) for value in values):
        return 1.0  # rates: they are set, not computed
    if not all(isfinite(value) for value in values):
        return 0.0
    largest = max(map(abs, values))
    return (max(values) - min(values)) / largest if largest else 0.0


def ranks_of(courses: Iterable[RankCourse]) -> list[int]:
    """Return the ranks of some courses."""
    return [course.rank for course in courses]
