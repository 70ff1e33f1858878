"""
Follow a training step: on fake tensors where it runs on them, and on real ones where it does not.

What is predicted is what the operations of the step ask of the allocator. The scratch space of
single kernels, the context of the device and the buffers of collectives are not in it.
"""

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainguard.core.errors import SubjectError
from trainguard.observe.memory.allocation_log import AllocationChange, AllocationLog, Entry
from trainguard.observe.memory.events import Stop, stop_of
from trainguard.observe.memory.fake import FakeAllocationLog, fake_tensors
from trainguard.observe.memory.kernel_scratch import fill
from trainguard.observe.memory.timeline import Rounding, Timeline, exact, in_blocks
from trainguard.observe.memory.training import Training, train
from trainguard.observe.tools.child_process import forks

_SHARE_OF_HOST = 0.5  # what a real step may take of the memory that is free
R = TypeVar("R")


@dataclass
class FollowedStep:
    """
    A step that was followed.

    how: "predicted for cuda on fake tensors", or "measured on cpu". detail: what was made up, or
    why it was not predicted. stop: why it was stopped, where it was for want of memory.
    """

    timeline: Timeline
    how: str
    detail: str = ""
    stop: Stop | None = None

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
    entries, changes, told = apart(lambda: _follow_fake(training, target))
    ledger = AllocationLog()
    ledger.entries, ledger.changes = entries, changes
    how = f"predicted for {target} on fake tensors"
    return FollowedStep(Timeline(ledger, _rounding(target)), how, told)


def _follow_fake(
    training: Callable[[], Training], target: str
) -> tuple[list[Entry], list[AllocationChange], str]:
    """Make the step on fake tensors; what is returned crosses from one process to another."""
    ledger = FakeAllocationLog()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch copies a fake module with a word about its data
        with fake_tensors(), ledger.following():
            train(training(), ledger)
    told = []
    if ledger.read:
        lines = ", ".join(Path(line).name for line in ledger.read)
        told.append(f"took {len(ledger.read)} logged numbers for granted: {lines}")
    left_out = fill(ledger.entries, ledger.changes, ledger.kernels) if target == "cpu" else []
    if left_out:
        told.append(f"without the scratch space of {len(left_out)} convolutions, too large to try")
    return ledger.entries, ledger.changes, "; ".join(told)


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
    """Return the bytes of memory that are free on this machine."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 32


def _rounding(target: str) -> Rounding:
    """Return how the allocator of a device rounds."""
    return in_blocks if target == "cuda" else exact


def apart(function: Callable[[], R]) -> R:
    """
    Return what the function returns in a forked child; in this process where none can be forked.

    What it raises is raised as a SubjectError in the words of the exception: its traceback stays
    in the child.
    """
    if not forks():
        return function()
    _flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12: nothing that holds a lock is used
        child = os.fork()
    if not child:
        os.close(reading)
        _answer(function, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            returned, failure = _receive(pipe)
    finally:
        _end(child)
    if failure is not None:
        raise failure
    result: R = returned
    return result


def _flush() -> None:
    """Write out what is buffered, which the child would otherwise write a second time."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, ValueError, OSError):  # there is none, or it is closed
            stream.flush()  # type: ignore[union-attr]


def _answer(function: Callable[[], Any], writing: int) -> None:
    """Call the function in the child, write what became of it, and end without any clean-up."""
    answer: tuple[Any, SubjectError | None]
    try:
        torch.set_num_threads(1)  # threads of the parent's pool do not exist here
        answer = function(), None
    except SubjectError as fault:
        answer = None, SubjectError(fault.sentence, fault.remedy)
    except BaseException as error:  # noqa: BLE001 whatever it is, the parent decides
        told = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        answer = None, SubjectError(f"it raised {told}", "run it on real tensors to see where")
    try:
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
    finally:
        os._exit(0)


def _receive(pipe: BinaryIO) -> tuple[Any, SubjectError | None]:
    """Read what the child wrote; one that died before it could is a fault of what it ran."""
    try:
        answer: tuple[Any, SubjectError | None] = pickle.load(pipe)  # noqa: S301 our own child's
    except EOFError:
        remedy = "look at what it calls outside of Python"
        return None, SubjectError("it ended the process that predicts its memory", remedy)
    return answer


def _end(child: int) -> None:
    """End the child, which may hang or be over, and let the system forget it."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
