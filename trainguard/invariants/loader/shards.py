"""Judgements of how ranks and workers share the data."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.events.trace import Trace

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


@invariant("loader", probe="shards")
def shards_partition_the_data(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Ranks, and the workers of a stream, serve each sample once between them.

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
        f"{event.measured:.0f} {unit}",
        f"{_limit_for(event):.0f} {unit}",
        why=why.format(who=event.detail, forgotten=forgotten),
        event=event,
    )


def _uneven(trace: Trace[Event], event: Serving) -> Finding:
    """Return the note about ranks that are done at different times."""
    return Finding(
        f"the ranks of `{trace.subject}` serve different numbers of batches",
        f"split {event.split!r}, {event.at}",
        f"{event.reference:.0f} to {event.reference + event.measured:.0f} batches",
        f"{event.reference:.0f} batches on each rank",
        why="the ranks that are done first leave the others waiting for their gradients",
        rank=Rank.NOTE,
        event=event,
    )
