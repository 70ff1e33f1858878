"""Judgements of what processes are served: each its own share of the data."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.ranks import RankCourse
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import evidence, ranks_of, replicas

_LEAST = 4  # steps with inputs that can be told apart
_SHARED = 0.5  # of the steps: two shuffles of a small data set may meet now and then


def _lacks_inputs(trace: Trace[Any]) -> str:
    """Return why there are no inputs to compare."""
    missing = evidence(trace)
    groups = list(replicas(trace, lone=True))
    if not groups:
        return missing
    told = any(sum(map(_can_be_told, group.courses)) > 1 for group in groups)
    return "" if told else "no inputs were seen that differ from step to step"


@invariant("ranks", evidence=_lacks_inputs)
def ranks_see_different_data(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Replicas are trained on different batches.

    Judges: the inputs of the passes of each step, by their fingerprints, in processes that are
        replicas: how many steps a process makes from inputs that another one has in the same step.
    Allows: half of the steps, from 4 steps on. Inputs that are the same in all steps, as in a
        benchmark.
    Misses: inputs that are not on the CPU; the same samples in another order; inputs that are
        augmented at random.
    Why: without a DistributedSampler, or split_dataset_by_node, all processes do the same work: the
        batch is as large as on one, and is paid for several times.
    Source: datasets#5360; transformers#34373; lingua#75.
    """
    for group in replicas(trace, lone=True):
        own = [course for course in group.courses if _can_be_told(course)]
        length = min((len(course.fingerprints) for course in own), default=0)
        if len(own) < 2 or not length:
            continue
        compared, shared = _count_shared(own, length)
        odd = [c for c, n in zip(own, shared, strict=True) if compared and n > _SHARED * compared]
        if compared >= _LEAST and len(odd) > 1:
            yield Finding(
                f"the replicas of `{trace.subject}` are trained on the same batches",
                group.at(odd[0].steps[0], ranks_of(odd)),
                portion(max(shared), compared, "steps") + " have the inputs of another rank",
                "each rank has a share of the data",
                why="perhaps the loader has no DistributedSampler, or the stream is not split by"
                " rank",
                source=odd[0].source,
            )


def _count_shared(courses: list[RankCourse], length: int) -> tuple[int, list[int]]:
    """Return how many steps can be compared, and in how many of them each has another's inputs."""
    compared, shared = 0, [0] * len(courses)
    for row in zip(*(course.fingerprints[:length] for course in courses), strict=True):
        if not all(any(inputs) for inputs in row):
            continue
        compared += 1
        if len(set(row)) < len(row):
            counts = Counter(row)
            shared = [n + (counts[own] > 1) for n, own in zip(shared, row, strict=True)]
    return compared, shared


def _can_be_told(course: RankCourse) -> bool:
    """Say whether a process has different inputs that are known."""
    return len({inputs for inputs in course.fingerprints if any(inputs)}) > 1
