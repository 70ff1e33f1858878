"""Judgements of what processes are served: each its own share of the data."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import portion, ranks_text
from trainguard.events.ranks import GENERATORS, RankCourse, ServedSamples
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import evidence, odd_ones, optimizers, ranks_of, replicas

_LEAST = 4  # steps with inputs that can be told apart
_TWICE = 0.1  # of the samples of a pass; of two orders that do not fit, a third meets
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


def _lacks_passes(trace: Trace[Any]) -> str:
    """Return why the passes of several processes through one data set cannot be compared."""
    if any(len(own) > 1 for own in _group_served(trace)):
        return ""
    return "no two processes are trained on one data set by its indices"


@invariant("ranks", evidence=_lacks_passes)
def epochs_are_reshuffled_on_all_ranks(trace: Trace[Any]) -> Iterator[Finding]:
    """
    All processes shuffle an epoch alike, and each serves its own part of it.

    Judges: 64 samples of each data set that is trained on, in the first 8 passes: how many of them
        several processes served; the epochs of DistributedSampler. A note without that sampler,
        where the processes shared an earlier pass and do not share this one.
    Allows: a 10th of the samples, and those that fill up the last batches of all processes.
        Processes that all serve the whole data; samples that a process itself serves several times;
        processes that are to serve the same part and do not.
    Misses: streams; data that is split before the loader; epochs after the first 8.
    Why: a set_epoch() that is called in one process alone, with another epoch, or a seed of each
        process, makes orders that do not fit: samples are served twice, others never.
    Source: kan-bayashi/ParallelWaveGAN issue 177; documentation of torch's DistributedSampler
        ("seed should be identical across all processes").
    """
    for own in _group_served(trace):
        shared_before = False
        for place in range(min(len(served.counts) for served in own)):
            twice, never, came = _count_served([served.counts[place] for served in own])
            filled = ceil((len(own) - 1) * len(own[0].counts[place]) / own[0].size)
            apart = twice >= max(_LEAST, _TWICE * came + filled)
            epochs = [served.epochs[place] for served in own]
            told = bool(own[0].share)
            if (apart and (told or shared_before)) or (len(set(epochs)) > 1 and own[0].shuffles):
                yield _serve_twice(trace, own, place, (twice, never, came))
                break
            shared_before = shared_before or (not twice and 2 * came >= len(own[0].counts[place]))


def _group_served(trace: Trace[Any]) -> list[list[ServedSamples]]:
    """Return what processes that share a data set were served, each part of it once."""
    groups: dict[Any, dict[str, ServedSamples]] = {}
    odd = set()
    for event in trace:
        if isinstance(event, ServedSamples) and not any({*c} - {*"01"} for c in event.counts):
            key = (event.data, event.size, event.sampler, event.share.rpartition(" ")[2])
            part = event.share or str(event.rank)
            same = groups.setdefault(key, {}).setdefault(part, event)
            if (same.counts, same.epochs) != (event.counts, event.epochs):
                odd.add(key)  # as where each machine has data of its own
    return [[*parts.values()] for key, parts in groups.items() if len(parts) > 1 and key not in odd]


def _count_served(counts: Sequence[str]) -> tuple[int, int, int]:
    """Return how many samples came in several processes, in none, and in any."""
    sums = [sum(map(int, digits)) for digits in zip(*counts, strict=True)]
    return sum(n > 1 for n in sums), sums.count(0), sum(n > 0 for n in sums)


def _serve_twice(
    trace: Trace[Any], own: list[ServedSamples], place: int, found: tuple[int, int, int]
) -> Finding:
    """Return the finding of the first pass whose orders do not fit."""
    epochs = [served.epochs[place] for served in own]
    ranks = [served.rank for served in own]
    apart = len(set(epochs)) > 1
    odd = odd_ones(epochs, ranks) if apart else ranks
    twice, never, came = found
    return Finding(
        f"processes of `{trace.subject}` are served the same samples in one epoch",
        f"pass {place + 1} through {own[0].size} samples by a {own[0].sampler}, {ranks_text(odd)}",
        portion(twice, came, "samples") + f" that were followed came in several, {never} in none",
        "each sample in one process",
        why=_explain_orders(epochs) if own[0].share else "perhaps each draws an order of its own",
        rank=Rank.BROKEN if own[0].share else Rank.NOTE,
        source=own[ranks.index(odd[0])].source,
    )


def _explain_orders(epochs: Sequence[int]) -> str:
    """Guess why orders do not fit, from the epochs of the samplers."""
    if len(set(epochs)) == 1:
        return "all are in the same epoch: perhaps each process gives its sampler a seed of its own"
    first, other = epochs[0], next(epoch for epoch in epochs if epoch != epochs[0])
    return f"the samplers are in epochs {first} and {other}: call set_epoch() in all processes"


def _lacks_draws(trace: Trace[Any]) -> str:
    """Return why no random numbers can be compared."""
    drawing = [c for own in optimizers(trace) for c in own if any(map(any, c.draws))]
    if len(drawing) < 2:
        return "no two processes draw random numbers from step to step"
    return "" if sum(map(_can_be_told, drawing)) > 1 else "no inputs were seen that differ"


@invariant("ranks", evidence=_lacks_draws)
def random_numbers_differ_between_ranks(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Processes that train on different batches draw different random numbers.

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
            drawn, same = _count_shared(
                [[(draws[place],) for draws in course.draws] for course in apart]
            )
            alike = [c for c, n in zip(apart, same, strict=True) if n > _SHARED * drawn]
            if drawn >= _LEAST and len(alike) > 1:
                yield note(
                    f"processes of `{trace.subject}` draw the same random numbers",
                    f"{alike[0].optimizer}, {ranks_text(ranks_of(alike))}",
                    portion(max(same), drawn, "steps") + f" drew the same numbers of {kind}",
                    "each process its own, for batches of its own",
                    why="perhaps the seed lacks the rank: torch.manual_seed(seed + rank), once the"
                    " model is built",
                    source=alike[0].source,
                )
                break


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
