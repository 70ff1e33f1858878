"""Judgements of loaders that are made a second time: under the same seed, and after a resume."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.events.trace import Trace

_PARTED = {
    "order": "the same samples in another order: perhaps the sampler or a set has a generator or an"
    " order of its own",
    "contents": "other samples, or other numbers in them: perhaps a generator is not seeded, or is"
    " seeded from the clock",
    "number": "one run ends before the other",
}
_RESUMED = {
    "again": "the epoch is started again: perhaps the state has no place in it, or it is not used",
    "skipped": "batches are left out: perhaps the place of the sampler is saved, which is ahead by"
    " what workers have prefetched",
    "repeated": "batches come a second time: perhaps the place is saved before it is counted",
    "order": "the same samples in another order: perhaps the shuffle is drawn anew",
    "others": "another order: perhaps the shuffle is drawn anew and the place in it kept",
    "ended": "the epoch ends early or late",
}


@invariant("loader", probe="reproduce", needs=("reproducible",))
def order_is_reproducible(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The same seed gives the same batches.

    Judges: the first 10 batches of each split, from loaders that are made twice with torch, numpy
        and `random` seeded alike before.
    Allows: whatever is declared reproducible=False; in_order=False with several workers. The
        generators of the team's modules are put back to where they were at first.
    Misses: orders that differ between processes only, such as that of a set of strings or of a
        directory; time and files that change.
    Why: a run that cannot be repeated cannot be compared with the next one, and its failures
        cannot be looked at twice.
    Source: PyTorch's notes on reproducibility, section DataLoader.
    """
    for event in trace:
        if isinstance(event, Serving) and event.quantity == "repeat" and event.detail:
            yield Finding(
                f"the same seed does not give the same batches of `{trace.subject}`",
                f"split {event.split!r}, {event.at}" if event.at else f"split {event.split!r}",
                "another batch" if event.at else "another number of batches",
                "the same batch" if event.at else "the same number of batches",
                why=_PARTED[event.detail],
                event=event,
            )
            return


@invariant("loader", probe="resume", needs=("resume",))
def resume_continues_the_epoch(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loader restored from a checkpoint within an epoch serves the rest of that epoch.

    Judges: the rest of the epoch after a save in the first epoch and in the second, and the number
        of batches in the epoch after it, against a run that was not interrupted. The state goes
        through pickle, as in a checkpoint.
    Allows: global generators of torch, numpy and `random` that a checkpoint restores, and ones
        that it does not: the rest must be right in one of these ways. Augmentation in workers that
        are seeded anew, as long as the samples are the same by the sampler's indices.
    Misses: a second resume within one epoch; saves at the very end of one; other numbers of workers
        or ranks than before.
    Why: a job that is preempted each hour and starts its epoch anew never sees the end of its data.
    Source: huggingface/accelerate issue 2016; allenai/open-instruct pull request 681 (batches are
        skipped in each later epoch too).
    """
    told: set[str] = set()
    for event in trace:
        if isinstance(event, Serving) and event.detail and event.quantity not in told:
            told.add(event.quantity)
            yield _make_finding(trace, event)


def _make_finding(trace: Trace[Event], event: Serving) -> Finding:
    """Return the finding of one thing that goes wrong after a resume."""
    summary, was, allowed, why = {
        "state": (
            f"the state of `{trace.subject}` cannot be saved and loaded",
            event.detail,
            "a round trip through pickle",
            "",
        ),
        "rest": (
            f"`{trace.subject}` does not continue its epoch after a resume",
            portion(event.measured, event.reference, "batches") + " as without the interruption",
            portion(event.reference, event.reference, "batches"),
            _RESUMED.get(event.detail, ""),
        ),
        "next": (
            f"the epoch after a resume of `{trace.subject}` has another length",
            integer(event.measured, "batches"),
            integer(event.reference, "batches"),
            "perhaps what was served before the resume is skipped once more",
        ),
    }[event.quantity]
    at = f"split {event.split!r}, {event.at}"
    return Finding(summary, at, was, allowed, why=why, event=event)
