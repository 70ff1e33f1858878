"""Judgements of worker processes: what each of them draws."""

from collections.abc import Iterator
from itertools import combinations

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loader import Batch, Serving
from trainguard.events.trace import Trace

_CHANCE = 1e-6
Course = tuple[int, ...]
_SPLIT = (
    "perhaps the data are not split by {forgotten}, or each of the {who} shuffles before they are"
    " split"
)
# What is said of each quantity: the summary, the unit, and the likely cause.
_WORDS = {
    "shared": ("the {who} of `{subject}` serve the same samples", "samples twice or more", _SPLIT),
    "alike": ("the {who} of `{subject}` serve the same samples", "ranks alike", _SPLIT),
    "missing": (
        "the {who} of `{subject}` leave samples out",
        "samples served by none",
        "perhaps a share is rounded down, or each shuffles on its own before it takes one",
    ),
    "passes": (
        "the sampler of `{subject}` makes each pass in the same order",
        "passes in one epoch",
        "DistributedSampler shuffles by seed and epoch, and set_epoch is not called",
    ),
}


@invariant("loader", probe="workers")
def workers_draw_different_numbers(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each worker process draws its own random numbers, and different ones in each epoch.

    Judges: the same samples, served 8 to 48 times by each of two real workers in two epochs: torch,
        numpy, `random` and generators of the data set's own, also where one of several is alike
        and has a share in the samples; whether workers that last are told
        the epoch by `set_epoch` of the data set, where it draws by that. A note where each worker
        repeats its own draws in the next epoch, and where the generator that is to blame was not
        found.
    Allows: data without randomness; draws that may be alike by chance more often than once in a
        million; loaders without workers. A data set that serves a stream must have a generator
        that is used while it does, in the same state in each worker.
    Misses: what is drawn for less than a few in a hundred samples; generators of streams that are
        split between the workers; ranks that draw alike.
    Why: a generator made before the workers start is copied into each of them, and a fixed seed
        in `worker_init_fn` sets all alike: the augmentation is the same in every worker, or comes
        back in every epoch.
    Source: pytorch/pytorch issue 5059 (numpy's state is copied into each worker); starVLA/starVLA
        pull request 471 (persistent workers keep the first epoch).
    """
    yield from _unheard(trace)
    batches = [event for event in trace if isinstance(event, Batch)]
    for first in {(event.case, event.split): event for event in reversed(batches)}.values():
        courses = _courses(trace, first)
        if _may_be_chance(list(courses.values())):
            continue
        equal = [p for p in combinations(courses, 2) if courses[p[0]] == courses[p[1]]]
        alike = [one for one, other in equal if one[0] == other[0]]
        again = [one for one, other in equal if one[1] == other[1]]
        if alike:
            epoch, draws = alike[0][0], len(courses[alike[0]])
            yield _drawn_alike(trace, first, epoch, draws, _find_shared_generators(trace, first))
            return
        part = [at for at in _find_shared_generators(trace, first, felt=True) if not alike]
        if part:
            yield _drawn_alike(trace, first, 0, len(next(iter(courses.values()))), part)
            return
        if again and len(again) == len({worker for _, worker in courses}):
            yield _drawn_again(trace, first, len(courses[again[0]]))
            return


def _unheard(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding where workers that last do not hear of the epoch."""
    told = (e for e in trace if isinstance(e, Serving) and e.quantity == "epoch")
    for event in told:
        if event.reference < event.measured:
            yield Finding(
                f"the workers of `{trace.subject}` are not told the epoch",
                f"split {event.split!r}",
                portion(event.reference, event.measured, "epochs") + " known to the workers",
                portion(event.measured, event.measured, "epochs") + " known to the workers",
                why="set_epoch reaches the data set of the training process, and persistent"
                " workers keep the copy that they started with; share the epoch with them",
                event=event,
            )
            return


def _courses(trace: Trace[Event], first: Batch) -> dict[tuple[int, int], Course]:
    """Return what each worker drew in each epoch of one split, in order."""
    courses: dict[tuple[int, int], Course] = {}
    for event in trace:
        if isinstance(event, Batch) and (event.case, event.split) == (first.case, first.split):
            key = (event.epoch, event.rank)
            courses[key] = (*courses.get(key, ()), *event.prints)
    return courses


def _may_be_chance(courses: list[Course]) -> bool:
    """Say whether independent workers could draw alike, by how often one of them repeats itself."""
    pairs = [one == other for course in courses for one, other in combinations(course, 2)]
    varied = any(len(set(course)) > 1 for course in courses)
    repeated = (sum(pairs) + 1) / (len(pairs) + 1)
    shortest = min((len(course) for course in courses), default=0)
    return not varied or repeated**shortest > _CHANCE


def _find_shared_generators(trace: Trace[Event], first: Batch, felt: bool = False) -> list[str]:
    """Return the generators that are in the same state in each worker, or those that are felt."""
    return [
        event.at
        for event in trace
        if isinstance(event, Serving)
        and (event.quantity, event.split, event.case) == ("generator", first.split, first.case)
        and event.measured == event.reference > 0
        and (event.detail == "felt" or not felt)
    ]


def _drawn_alike(
    trace: Trace[Event], first: Batch, epoch: int, draws: int, shared: list[str]
) -> Finding:
    """Return the finding of workers that draw the same, be it from one generator of several."""
    return Finding(
        f"the workers of `{trace.subject}` draw the same random numbers",
        f"split {first.split!r}, epoch {epoch}, workers 0 and 1",
        portion(draws, draws, "draws") + " alike",
        portion(0, draws, "draws") + " alike",
        why=_cause(shared),
        rank=Rank.BROKEN if shared else Rank.NOTE,
        event=first,
    )


def _cause(shared: list[str]) -> str:
    """Say which generators are in the same state in each worker, and how that comes about."""
    if not shared:
        return "no generator was found in the same state; perhaps it is made with a fixed seed"
    if "`" in shared[0]:
        return (
            f"{shared[0]} is copied into each worker; make it there, seeded with"
            " torch.initial_seed()"
        )
    return (
        f"{shared[0]} is in the same state in each worker; perhaps worker_init_fn seeds all of them"
        " alike"
    )


def _drawn_again(trace: Trace[Event], first: Batch, draws: int) -> Finding:
    """Return the note about workers that draw in each epoch what they drew before."""
    return note(
        f"the workers of `{trace.subject}` draw the same random numbers in each epoch",
        f"split {first.split!r}, epochs 0 and 1",
        portion(draws, draws, "draws") + " alike",
        portion(0, draws, "draws") + " alike",
        why="workers are started anew for each epoch, and seeded with a fixed number and their own;"
        " seed them with torch.initial_seed(), or keep them with persistent_workers=True",
        event=first,
    )


@invariant("loader", probe="shards")
def shards_partition_the_data(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Ranks, and the workers of a stream, split the data so that each sample is served once.

    Judges: what is trained on: with `ranks` declared, one epoch of each rank, for each number of
        ranks, against what a single one serves; the worker processes of a data set that is
        iterated against the process alone. Where the loader has no end, whether ranks serve the
        same, and whether a DistributedSampler inside it passes through one epoch over and over. A
        note where ranks serve different numbers of batches, at which training hangs.
    Allows: samples that fill up the last batches of all ranks evenly, as DistributedSampler does,
        or that are dropped there; augmentation; sampling with replacement, which is not judged.
    Misses: ranks that are seeded differently in the training than here, where all have one seed;
        later epochs; splits that are not trained on.
    Why: a data set that is iterated is copied into each worker and each rank: without
        get_worker_info() and the rank, all serve everything, and the epoch is as many times longer.
    Source: huggingface/datasets issues 3423 (workers) and 5360 (ranks).
    """
    told: set[str] = set()
    for event in trace:
        if not isinstance(event, Serving):
            continue
        kind = event.quantity + event.detail
        if kind not in told and event.measured > _limit_for(event):
            told.add(kind)
            yield _finding(trace, event)


def _limit_for(event: Serving) -> float:
    """Return how much of a quantity is no fault."""
    return {"uneven": 0.0, "alike": 0.0, "passes": 1.0}.get(event.quantity, event.reference)


def _finding(trace: Trace[Event], event: Serving) -> Finding:
    """Return the finding of one thing that is not shared as it should be."""
    if event.quantity == "uneven":
        return _uneven(trace, event)
    summary, unit, why = _WORDS[event.quantity]
    forgotten = "get_worker_info()" if event.detail == "workers" else "the rank"
    return Finding(
        summary.format(who=event.detail, subject=trace.subject),
        f"split {event.split!r}, {event.at}",
        integer(event.measured) + f" {unit}",
        integer(_limit_for(event)) + f" {unit}",
        why=why.format(who=event.detail, forgotten=forgotten),
        event=event,
    )


def _uneven(trace: Trace[Event], event: Serving) -> Finding:
    """Return the note about ranks that are done at different times."""
    return note(
        f"the ranks of `{trace.subject}` serve different numbers of batches",
        f"split {event.split!r}, {event.at}",
        integer(event.reference) + f" to {event.reference + event.measured:.0f} batches",
        integer(event.reference, "batches") + " on each rank",
        why="the ranks that are done first leave the others waiting for their gradients",
        event=event,
    )
