"""Judgements of the memory of a device: what is left free, and what a blessed snapshot had."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import amounts, percent, step, where
from trainguard.invariants.wording import of
from trainguard.subjects.units import format_bytes


@invariant("memory", probe="device", needs=("headroom",))
def headroom_is_kept(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    A share of the device's memory stays free during a training step.

    Judges: two real training steps on CUDA, or another accelerator whose allocator counts: the most
        that it reserved, which is what is in use and what lies broken up between it, against what
        the device has.
    Allows: the declared `headroom`, the share that must stay free.
    Misses: the context of the device and other processes on it, which take some of what is left;
        every machine without one, where it is skipped.
    Why: a longer recording, another order of batches or a checkpoint that is saved takes a little
        more, and a step that fills the device to the brim dies of it after a day.
    Source: PyTorch's notes on CUDA, memory management
        (docs.pytorch.org/docs/stable/notes/cuda.html).
    """
    promised = trace.promise("budget:headroom")
    for seen in of(trace, "headroom"):
        if promised is None:
            continue
        free = seen.reference - seen.measured
        if free < int(promised * seen.reference) or seen.count:
            yield Finding(
                f"{step(trace)} leaves less of the device free than promised"
                if not seen.count
                else f"{step(trace)} runs out of memory",
                where(seen),
                percent(free / seen.reference) + f" free: {format_bytes(seen.measured)} of"
                f" {format_bytes(seen.reference)} reserved, {seen.how}",
                percent(promised) + " free or more",
                why=seen.detail,
                event=seen,
            )


_BLESS = "bless it: pytest --trainguard --snapshot-update (with syrupy installed)"
_LISTED = 3


@invariant("memory", probe="snapshot", needs=("snapshot",), per="dtype")
def memory_matches_snapshot(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    A step takes no more memory than its blessed snapshot.

    Judges: the peak of two training steps against the one in the snapshot, a file under
        `__snapshots__` beside the declaration, at the same sizes and found in the same way.
    Allows: the declared `snapshot`, a share above the kept peak; anything below it.
    Misses: growth that comes in steps smaller than the share and is blessed each time.
    Why: memory is lost a little at a time, to a tensor that is kept for a plot or a cast that was
        added: no budget is broken, and half a year later nothing fits.
    Source: PyTorch, Understanding CUDA Memory Usage
        (docs.pytorch.org/docs/stable/torch_cuda_memory.html).
    """
    share = trace.promise("budget:snapshot")
    yield from _incomparable(trace)
    for seen in of(trace, "snapshot"):
        if share is None or seen.detail or seen.measured <= seen.reference * (1 + share):
            continue
        measured, kept = amounts(seen.measured, seen.reference)
        more = seen.measured / seen.reference - 1
        yield Finding(
            f"{step(trace)} takes more memory than its snapshot",
            where(seen),
            measured + f", {percent(more)} more, {seen.how}",
            kept + f" and {percent(share)} more, in {seen.place}",
            why=_list_growth(trace),
            event=seen,
        )


def _incomparable(trace: Trace[Usage]) -> Iterator[Finding]:
    """Find a snapshot that is not there, cannot be read, or is of another step."""
    for seen in of(trace, "no snapshot"):
        what = f"{step(trace)} has no snapshot to be held against"
        told = seen.detail or "no such file"
        yield Finding(what, where(seen), told, seen.place, why=_BLESS, event=seen)
    for seen in of(trace, "snapshot"):
        if seen.detail:
            what = f"the snapshot of {step(trace)} is of another step"
            yield Finding(what, where(seen), seen.detail, why=_BLESS, event=seen)


def _list_growth(trace: Trace[Usage]) -> str:
    """List the categories that grew most."""
    grown = {c.place: c.measured - c.reference for c in of(trace, "category")}
    most = sorted(grown, key=lambda name: -grown[name])[:_LISTED]
    parts = [f"{name} {format_bytes(grown[name])} more" for name in most if grown[name] > 0]
    return f"at the peak: {', '.join(parts)}; if that is meant, {_BLESS}"
