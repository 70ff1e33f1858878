"""
Follow a training step: on fake tensors where it runs on them, and on real ones where it does not.

What is predicted is what the operations of the step ask of the allocator. The scratch space of
single kernels, the context of the device and the buffers of collectives are not in it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from trainguard.fault import SubjectError
from trainguard.observe.usage.apart import apart
from trainguard.observe.usage.fake import FakeLedger, faked
from trainguard.observe.usage.ledger import Change, Entry, Exhausted, Ledger
from trainguard.observe.usage.timeline import Timeline, exact, in_blocks
from trainguard.observe.usage.training import Training, train

_SHARE_OF_HOST = 0.5  # what a real step may take of the memory that is free


@dataclass
class Followed:
    """
    A step that was followed.

    how: "predicted for cuda on fake tensors", or "measured on cpu". detail: what was made up, or
    why it was not predicted. exhausted: whether it was stopped for want of memory.
    """

    timeline: Timeline
    how: str
    detail: str = ""
    exhausted: bool = False
    read: tuple[str, ...] = field(default=())


def followed(training: Callable[[], Training], target: str, most: float | None = None) -> Followed:
    """
    Follow the step that `training` describes: predicted for a target device, or else measured.

    Raises SubjectError where it neither runs on fake tensors nor, within what this machine has
    free, on real ones.
    """
    try:
        return predicted(training, target)
    except SubjectError as fault:
        return measured(training, target, fault.sentence, most)


def predicted(training: Callable[[], Training], target: str) -> Followed:
    """Follow a step on fake tensors, in a process of its own."""

    def run() -> FakeLedger:
        """Make the step."""
        ledger = FakeLedger()
        with faked(), ledger.following():
            train(training(), ledger)
        return ledger

    entries, changes, read = apart(lambda: _plain(run()))
    made = Ledger()
    made.entries, made.changes = entries, changes
    rounding = in_blocks if target == "cuda" else exact
    detail = f"took {len(read)} logged numbers for granted: {', '.join(read)}" if read else ""
    return Followed(Timeline(made, rounding), f"predicted for {target} on fake tensors", detail)


def measured(
    training: Callable[[], Training], target: str, why: str, most: float | None = None
) -> Followed:
    """Follow a step on real tensors, and stop it before it takes all that the machine has."""
    ledger = Ledger(most or _SHARE_OF_HOST * available())
    exhausted = False
    try:
        with ledger.following():
            train(training(), ledger)
    except SubjectError as fault:
        if not isinstance(fault.__cause__, Exhausted):
            raise
        exhausted = True
    except Exhausted:
        exhausted = True
    rounding = in_blocks if target == "cuda" else exact
    detail = f"on fake tensors {why}" if why else ""
    return Followed(Timeline(ledger, rounding), "measured on cpu", detail, exhausted)


def available() -> int:
    """Return the bytes of memory that are free on this machine."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 32


def _plain(ledger: FakeLedger) -> tuple[list[Entry], list[Change], tuple[str, ...]]:
    """Return what crosses from one process to another."""
    return list(ledger.entries), list(ledger.changes), tuple(ledger.read)
