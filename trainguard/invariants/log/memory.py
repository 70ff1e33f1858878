"""Judgement of allocations that a log says have failed."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import Measure, at_step
from trainguard.events.base import Event
from trainguard.events.log import Exhausted
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import some
from trainguard.invariants.loop.wording import events

_BROKEN_UP = 0.05  # of what is reserved: less is the usual rounding of blocks
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@invariant("log", evidence=some(Exhausted, "no allocation failed"))
def memory_suffices(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No allocation fails for lack of memory.

    Judges: the messages of torch that an allocation failed: what was asked for, and what of the
        memory was reserved and not in use.
    Allows: nothing.
    Misses: a process that the system ended, which says nothing.
    Why: memory that is reserved and lies broken up is lost to a large tensor though it is free.
    Source: the post-mortem gpu-memory: 1.50 GiB asked for, 1.22 GiB free; PyTorch's notes on CUDA,
        memory management.
    """
    for lost in events(trace, Exhausted):
        unused = max(0.0, lost.reserved - lost.allocated)
        broken_up = unused >= lost.asked > 0 and unused >= _BROKEN_UP * lost.reserved
        yield Finding(
            f"`{trace.subject}` ran out of memory",
            at_step(lost.step),
            _amount(lost.asked) + " asked for" + _told(lost),
            "at most " + _amount(lost.free) + " free" if lost.free else "",
            why=f"{_amount(unused)} are reserved and not in use, broken up in pieces: set"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or make shapes alike"
            if broken_up
            else "a smaller batch, shorter sequences or activation checkpoints take less; see"
            " `trainguard memory`",
            event=lost,
        )


def _told(lost: Exhausted) -> str:
    """Say what of the device was in use, as far as the message says it."""
    if not lost.allocated:
        return ""
    reserved = f", {_amount(lost.reserved)} reserved" if lost.reserved else ""
    return f"; {_amount(lost.allocated)} in use{reserved}"


def _amount(size: float) -> Measure:
    """Write a number of bytes."""
    shown, power = size, 0
    while shown >= 1024 and power < len(_UNITS) - 1:
        shown, power = shown / 1024, power + 1
    return Measure(f"{shown:.4g} {_UNITS[power]}", size, "B")
