"""Judgements of worker counts and the like: notes, since the training may run elsewhere."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.events.trace import Trace
from trainguard.invariants.wording import number

_CROWD = 2.0  # workers for each core
_SLOW = 0.2  # seconds
_START = 0.3  # seconds
_LARGE = 1 << 20  # bytes


@invariant("loader", probe="settings")
def settings_fit_the_machine(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Worker count, prefetching, pinning and persistent workers suit this machine. Notes only.

    Judges: DataLoaders: more than 2 workers for each core (limit), over the ranks that have an
        accelerator here; batches that take the training process 0.2 s and more without a worker;
        workers that take 0.3 s to start for each epoch, and longer than the epoch; more bytes of
        prefetched batches than there is shared memory; batches of 1 MB that are not pinned though
        there is an accelerator.
    Allows: whatever costs nothing: pinning without an accelerator, no workers for quick samples,
        workers that start at once, a worker or two on a single core. Slow batches on a single core
        that computes them.
    Misses: loaders that are no torch DataLoader; the speed of the training itself, which
        data_keeps_up sees; machines other than this one.
    Why: with four times as many workers as cores they wait for each other; workers that open their
        files again in each epoch may take longer than they save.
    Source: pytorch/pytorch issue 15849 (workers that are started anew for each epoch).
    """
    crowd = trace.limit("settings_fit_the_machine", _CROWD)
    told: set[str] = set()
    for event in trace:
        if isinstance(event, Serving) and event.quantity not in told:
            finding = _note(trace, event, crowd)
            if finding is not None:
                told.add(event.quantity)
                yield finding


def _note(trace: Trace[Event], event: Serving, crowd: float) -> Finding | None:
    """Return the note about one measured setting, if there is something to say."""
    if event.quantity == "workers":
        return _find_crowding(trace, event, crowd)
    if event.quantity == "batch":
        return _slow(trace, event)
    if event.quantity == "start":
        return _find_restarts(trace, event)
    if event.quantity == "prefetched":
        return _find_prefetching(trace, event)
    return _find_unpinned_memory(trace, event) if event.quantity == "unpinned" else None


def _find_crowding(trace: Trace[Event], event: Serving, crowd: float) -> Finding | None:
    """Note more workers than the cores can run."""
    most = max(2.0, crowd * event.reference)
    if event.measured <= most:
        return None
    return note(
        f"`{trace.subject}` has more workers than this machine can run",
        f"split {event.split!r}",
        integer(event.measured, "workers"),
        integer(most, "workers") + f" on {event.reference:.0f} cores",
        why="workers that wait for each other cost memory and bring nothing; the training may run"
        " on a larger machine",
        event=event,
    )


def _slow(trace: Trace[Event], event: Serving) -> Finding | None:
    """Note batches that the training process makes itself, slowly."""
    waits = event.reference < event.measured / 2
    if event.measured < _SLOW or (event.detail == "1 cores" and not waits):
        return None
    return note(
        f"the batches of `{trace.subject}` are made in the training process, and slowly",
        f"split {event.split!r}",
        number(event.measured, "s", ".2f") + " for a batch",
        number(_SLOW, "s", ".2f") + " for a batch",
        why="with num_workers=0 the training stands still meanwhile; workers would make batches"
        " ahead of it",
        event=event,
    )


def _find_restarts(trace: Trace[Event], event: Serving) -> Finding | None:
    """Note workers whose start takes longer than the epoch that they are started for."""
    if event.measured < _START or event.measured < event.reference:
        return None
    return note(
        f"the workers of `{trace.subject}` take longer to start than to serve an epoch",
        f"split {event.split!r}",
        number(event.measured, "s", ".2f") + " to start",
        number(event.reference, "s", ".2f") + ", as the rest of the epoch",
        why="they are started anew for each epoch, and perhaps load or open something first;"
        " persistent_workers=True keeps them",
        event=event,
    )


def _find_prefetching(trace: Trace[Event], event: Serving) -> Finding | None:
    """Note prefetched batches that the shared memory has no room for."""
    if not event.measured > event.reference:
        return None
    return note(
        f"the batches that `{trace.subject}` prefetches do not fit into shared memory",
        f"split {event.split!r}",
        _mebibytes(event.measured),
        _mebibytes(event.reference),
        why="workers die of a bus error when it is full; fewer workers, a lower prefetch_factor,"
        " or more of it (docker run --shm-size)",
        event=event,
    )


def _find_unpinned_memory(trace: Trace[Event], event: Serving) -> Finding | None:
    """Note large batches that are copied to an accelerator from memory that is not pinned."""
    if event.measured < _LARGE:
        return None
    return note(
        f"the batches of `{trace.subject}` are large and not pinned",
        f"split {event.split!r}",
        _mebibytes(event.measured) + " for a batch",
        _mebibytes(_LARGE) + " for a batch that is not pinned",
        why="the copy to the accelerator cannot overlap with its work; pin_memory=True lets it",
        event=event,
    )


def _mebibytes(size: float) -> Measure:
    """Write an amount of memory in MiB."""
    return Measure(f"{number(size / _LARGE)} MiB", size, "B")
