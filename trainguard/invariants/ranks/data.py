"""Judgements of what processes are served: each its own share of the data."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import portion
from trainguard.events.ranks import GENERATORS, RankCourse
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import evidence, optimizers, ranks_of, ranks_text, replicas

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
        compared, shared = _count_shared([course.fingerprints for course in own])
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


def _lacks_draws(trace: Trace[Any]) -> str:
    """Return why no random numbers can be compared."""
    drawing = [c for own in optimizers(trace) for c in own if any(map(any, c.draws))]
    if len(drawing) < 2:
        return "no two processes draw random numbers from step to step"
    return "" if sum(map(_can_be_told, drawing)) > 1 else "no inputs were seen that differ"


@invariant("ranks", evidence=_lacks_draws)
def random_numbers_differ_between_ranks(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Processes that are trained on different batches draw different random numbers for them.

    Judges: what the generators of torch, NumPy and random draw for each of the first 64 steps:
        dropout, noise, augmentation in the process itself. A note: seeds that are the same in all
        processes are often meant for the initial parameters alone.
    Allows: half of the steps, from 4 on that draw; whatever is drawn for the same batches, as in
        tensor parallelism; draws at the beginning of an epoch, as for its order; generators that a
        library has seeded last, as Hugging Face's Trainer does: it has its reasons.
    Misses: generators of the script's own, of accelerators and of workers; a stream that is put
        back after each step; processes whose inputs are not on the CPU.
    Why: samples of one step get the same masks and the same noise on each process: noise of which
        a batch has several draws is averaged, and this is not.
    Source: Accelerate documentation, set_seed (device_specific: another seed on each process).
    """
    for courses in optimizers(trace):
        own = [course for course in courses if course.draws and _can_be_told(course)]
        inputs, shared = _count_shared([course.fingerprints for course in own])
        apart = [c for c, n in zip(own, shared, strict=True) if inputs and n <= _SHARED * inputs]
        for place, kind in enumerate(GENERATORS):
            drawn, same = _count_shared([_column(course, place) for course in apart])
            alike = [c for c, n in zip(apart, same, strict=True) if n > _SHARED * drawn]
            if drawn >= _LEAST and len(alike) > 1:
                yield Finding(
                    f"processes of `{trace.subject}` draw the same random numbers",
                    f"{alike[0].optimizer}, {ranks_text(ranks_of(alike))}",
                    portion(max(same), drawn, "steps") + f" drew the same numbers of {kind}",
                    "each process its own, for batches of its own",
                    why="perhaps the seed lacks the rank: torch.manual_seed(seed + rank), once the"
                    " model is built",
                    rank=Rank.NOTE,
                    source=alike[0].source,
                )
                break


def _column(course: RankCourse, place: int) -> list[tuple[int, ...]]:
    """Return what one generator of a process has drawn for each step."""
    return [(draws[place],) for draws in course.draws]


def _count_shared(columns: Sequence[Sequence[tuple[int, ...]]]) -> tuple[int, list[int]]:
    """Return how many steps can be compared, and in how many of them each has what another has."""
    compared, shared = 0, [0] * len(columns)
    for row in zip(*columns, strict=False):
        if not all(any(numbers) for numbers in row):
            continue
        compared += 1
        if len(set(row)) < len(row):
            counts = Counter(row)
            shared = [n + (counts[own] > 1) for n, own in zip(shared, row, strict=True)]
    return compared, shared


def _can_be_told(course: RankCourse) -> bool:
    """Say whether a process has different inputs that are known."""
    return len({inputs for inputs in course.fingerprints if any(inputs)}) > 1
