"""Judgement of what is left free on a device."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import of, percent, step, where
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
