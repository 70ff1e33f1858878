"""Judgements of worker processes: what each of them draws."""

from collections.abc import Iterator
from itertools import combinations

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.events.base import Event
from trainguard.events.loader import Batch, Serving
from trainguard.events.trace import Trace

_CHANCE = 1e-6

Course = tuple[int, ...]


@invariant("loader", probe="workers")
def workers_draw_different_numbers(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each worker process draws random numbers of its own, and others in each epoch.

    Judges: the same samples, served 8 to 48 times by each of two real workers in two epochs: torch,
        numpy, `random` and generators of the data set's own; whether workers that last are told
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
            yield _drawn_alike(trace, first, alike[0][0], len(courses[alike[0]]))
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
                f"{event.reference:.0f} of {event.measured:.0f} epochs known to the workers",
                f"{event.measured:.0f} of {event.measured:.0f} epochs known to the workers",
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


def _drawn_alike(trace: Trace[Event], first: Batch, epoch: int, draws: int) -> Finding:
    """Return the finding of workers that draw the same."""
    shared = [
        event.at
        for event in trace
        if isinstance(event, Serving)
        and (event.quantity, event.split, event.case) == ("generator", first.split, first.case)
        and event.measured == event.reference > 0
    ]
    return Finding(
        f"the workers of `{trace.subject}` draw the same random numbers",
        f"split {first.split!r}, epoch {epoch}, workers 0 and 1",
        f"{draws} of {draws} draws alike",
        f"0 of {draws} draws alike",
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
    return Finding(
        f"the workers of `{trace.subject}` draw the same random numbers in each epoch",
        f"split {first.split!r}, epochs 0 and 1",
        f"{draws} of {draws} draws alike",
        f"0 of {draws} draws alike",
        why="workers are started anew for each epoch, and seeded with a fixed number and their own;"
        " seed them with torch.initial_seed(), or keep them with persistent_workers=True",
        rank=Rank.NOTE,
        event=first,
    )
