"""Judgements of what batches share with each other and with the data set."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.events.trace import Trace

_EDITED = {
    "in the process": "a transform or collate function works in place on what the data set holds:"
    " each epoch starts from the result of the last",
    "in lasting workers": "a transform or collate function works in place on what the data set"
    " holds, and persistent workers keep it",
    "in workers": "a transform or collate function works in place on what the data set holds;"
    " workers that end with the epoch forget it, others would not",
}


@invariant("loader", probe="storage")
def batches_are_independent(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Serving later batches changes neither earlier batches nor the data set.

    Judges: up to six batches that are kept while the next ones are served, by real workers where
        there are some; two batches that are read in this process under the same random numbers,
        before and after they were read under others, where an array changed that the loader holds.
    Allows: batches that are views of one array, as long as it is only read; caches that are filled;
        counters; generators. A note where workers forget the change at the end of the epoch.
    Misses: what happens after the first batches; arrays above 64 MB, on other devices or behind
        compiled code; edits that change nothing the second time.
    Why: a collate function that fills one buffer again and again overwrites the batch that is
        still being copied or kept for a metric; an in-place normalisation is applied once more in
        each epoch.
    Source: PyTorch's documentation of `torch.from_numpy` and of views: both share their memory.
    """
    seen: set[str] = set()
    for event in trace:
        if isinstance(event, Serving) and event.quantity not in seen:
            seen.add(event.quantity)
            yield (
                _make_edited_finding(trace, event)
                if event.quantity == "edited"
                else _make_lost_finding(trace, event)
            )


def _make_lost_finding(trace: Trace[Event], event: Serving) -> Finding:
    """Return the finding of batches that do not stay what they are."""
    return Finding(
        f"batches of `{trace.subject}` are overwritten by later ones",
        f"split {event.split!r}, {event.at}",
        portion(event.measured, event.reference, "batches") + " changed",
        portion(0, event.reference, "batches") + " changed",
        why="perhaps the collate function fills the same buffer each time and returns it;"
        " return a copy, or make a new one",
        event=event,
    )


def _make_edited_finding(trace: Trace[Event], event: Serving) -> Finding:
    """Return the finding of a data set that is not left alone."""
    return Finding(
        f"serving batches changes the data set of `{trace.subject}`",
        f"split {event.split!r}, array {event.at}" if event.at else f"split {event.split!r}",
        portion(event.measured, event.reference, "elements") + " changed",
        portion(0, event.reference, "elements") + " changed",
        why=_EDITED.get(event.detail, ""),
        rank=Rank.NOTE if event.detail == "in workers" else Rank.BROKEN,
        event=event,
    )
