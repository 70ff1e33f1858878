"""
Follow a training step: on fake tensors where it runs on them, and on real ones where it does not.

What is predicted is what the operations of the step ask of the allocator. The scratch space of
single kernels, the context of the device and the buffers of collectives are not in it.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch._subclasses.fake_tensor import FakeTensorMode

from trainguard.core.errors import SubjectError
from trainguard.observe.memory.allocation_log import AllocationChange, AllocationLog, StorageEntry
from trainguard.observe.memory.events import Stop, stop_of
from trainguard.observe.memory.fake import FakeAllocationLog, fake_tensors
from trainguard.observe.memory.kernel_scratch import fill
from trainguard.observe.memory.timeline import Rounding, Timeline, exact, in_blocks
from trainguard.observe.memory.training import OPTIMIZER_STATE, Training, train
from trainguard.observe.tools.child_process import call_in_child

# The operation of `torch.tensor(0.0)`, with which torch's optimizers begin to count where they are
# neither fused nor capturable; those that are make zeros on the device.
_FROM_NUMBER = "lift_fresh"
_SHARE_OF_HOST = 0.5  # what a real step may take of the memory that is free


@dataclass
class FollowedStep:
    """
    A step that was followed.

    how: "predicted for cuda on fake tensors", or "measured on cpu". detail: what was made up, or
    why it was not predicted. stop: why it was stopped, where it was for want of memory.
    predicted_for: the device it was predicted for; nothing where it was measured.
    """

    timeline: Timeline
    how: str
    detail: str = ""
    stop: Stop | None = None
    predicted_for: str = ""

    @property
    def is_exhausted(self) -> bool:
        """Whether it was stopped for want of memory."""
        return self.stop is not None


def follow_step(
    training: Callable[[], Training], target: str, most: float | None = None
) -> FollowedStep:
    """
    Follow the step that `training` describes: predicted for a target device, or else measured.

    Raises SubjectError where it neither runs on fake tensors nor, within what this machine has
    free, on real ones.
    """
    try:
        return predict_step(training, target)
    except SubjectError as fault:
        why = fault.sentence
    return measure_step(training, target, why, most)


def predict_step(training: Callable[[], Training], target: str) -> FollowedStep:
    """Follow a step on fake tensors, in a process of its own."""
    FakeTensorMode()  # what torch imports for the first one need not be imported in each child
    entries, changes, told = call_in_child(lambda: _follow_fake(training, target))
    ledger = AllocationLog()
    ledger.entries, ledger.changes = entries, changes
    how = f"predicted for {target} on fake tensors"
    return FollowedStep(Timeline(ledger, _rounding(target)), how, told, predicted_for=target)


def _follow_fake(
    training: Callable[[], Training], target: str
) -> tuple[list[StorageEntry], list[AllocationChange], str]:
    """Make the step on fake tensors; what is returned crosses from one process to another."""
    ledger = FakeAllocationLog()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch copies a fake module with a word about its data
        with fake_tensors(target), ledger.following():
            train(training(), ledger)
    told = []
    if ledger.read:
        lines = ", ".join(Path(line).name for line in ledger.read)
        told.append(f"took {len(ledger.read)} logged numbers for granted: {lines}")
    left_out = fill(ledger.entries, ledger.changes, ledger.kernels) if target == "cpu" else []
    if left_out:
        told.append(f"without the scratch space of {len(left_out)} convolutions, too large to try")
    return ledger.entries, changes_on(target, ledger), "; ".join(told)


def changes_on(target: str, ledger: AllocationLog) -> list[AllocationChange]:
    """Return what changed on a target: on CUDA, not the steps that optimizers count on the cpu."""
    if target != "cuda":
        return ledger.changes
    counters = {
        number
        for number, entry in enumerate(ledger.entries)
        if entry.category == OPTIMIZER_STATE and entry.operation == _FROM_NUMBER
    }
    return [change for change in ledger.changes if change.entry not in counters]


def measure_step(
    training: Callable[[], Training], target: str, why: str, most: float | None = None
) -> FollowedStep:
    """Follow a step on real tensors, and stop it before it takes all that the machine has."""
    ledger = AllocationLog(most or available_share())
    stop = None
    try:
        with ledger.following():
            train(training(), ledger)
    except (SubjectError, RuntimeError, MemoryError) as error:
        stop = stop_of(error, ledger.live_bytes)
        if stop is None:
            raise
    detail = f"on fake tensors {why}" if why else ""
    return FollowedStep(Timeline(ledger, _rounding(target)), "measured on cpu", detail, stop)


def available_share() -> float:
    """Return the bytes that a real step may take of those that are free on this machine."""
    return _SHARE_OF_HOST * available()


def available() -> int:
    """Return the bytes of memory that a process may take on this machine without swapping."""
    try:  # Linux tells what its caches would give back, which are not free pages
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return _free_pages()


def _free_pages() -> int:
    """Return the bytes of pages that are free; 4 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 32


def _rounding(target: str) -> Rounding:
    """Return how the allocator of a device rounds."""
    return in_blocks if target == "cuda" else exact
