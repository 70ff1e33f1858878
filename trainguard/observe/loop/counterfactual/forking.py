"""Fork a training: the child goes on in the user's code and reports, the parent waits for it."""

import ctypes
import os
import pickle
import random
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from mmap import PAGESIZE
from pathlib import Path
from time import monotonic, process_time
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn

from trainguard.observe.loop.counterfactual import log_writers
from trainguard.observe.loop.counterfactual.sealing import landlock_version, seal, unrefused
from trainguard.observe.tools.devices import in_use
from trainguard.observe.tools.outside_state import reaches_outside
from trainguard.observe.tools.patches import seen

T = TypeVar("T")
Report = dict[str, Any]
_LOOKING = 20.0  # seconds of processor time for a few passes of a model on one thread
_HURRIED = 2.0  # the same, where a lock of another thread may keep it from ever ending
_REAL = 5.0  # seconds by the clock that are waited for each of the child's processor time
_LOOK = 0.05  # seconds after which it is looked whether a child is to be cut short
_NICE = 19  # the least priority that there is
_STARVED = 0.15  # seconds by the clock after which a child should have run for half of the time
_SIGNAL_OF_PARENTS_END = 1  # of prctl
_LARGEST = 4 * 2**30  # bytes of memory in use: the child may come to write to all of them
_OWNERS = 4  # a deputy, what goes on for it, and the child of each may come to own all memory
# Threads that wait, by class, name or the module of their function: tqdm's, our own, the one that
# pytest-rerunfailures has in each test run, those of loggers, and those that tell the workers of a
# loader what to read. A child has none of the last: where it asks for a batch that has not come
# yet, there is no answer.
_IDLE = log_writers.THREADS | {
    *("TMonitor", "trainguard", "pytest_rerunfailures", "QueueFeederThread"),
}
_QUIET: Any = ("ignore", None, DeprecationWarning, None, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What became of a question.

    report: what the child sent; empty where it was given up. trouble: why that was.
    seconds: of processor time, the child's and the parent's.
    """

    report: Report = field(default_factory=dict)
    trouble: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Exit:
    """The way out of a child: what it reports ends it."""

    pipe: int
    owner: int = field(default_factory=os.getpid)

    def report(self, **numbers: Any) -> NoReturn:
        """Send numbers to the parent, and end."""
        left = memoryview(pickle.dumps(numbers))
        while left:
            left = left[os.write(self.pipe, left) :]
        os._exit(0)

    def void(self, why: str) -> NoReturn:
        """End with the answer that the question means nothing here, and why."""
        self.report(void=why)

    def give_up(self, why: str) -> NoReturn:
        """End without an answer, and say why; a process that the child started only ends."""
        if os.getpid() != self.owner:
            os._exit(1)
        self.report(trouble=why)


def obstacle() -> str:
    """Return why a child of this process could not train, or could do harm; nothing if it can."""
    threads = [t for t in threading.enumerate() if not _IDLE & _names(t)]
    if why := _forbids_children():
        return why
    if threads != [threading.main_thread()]:
        return f"the script has {len(threads)} threads"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "the script is one of a group of processes"
    if _memory_in_use() > min(_LARGEST, _memory_available() / _OWNERS):
        return "memory is short"
    return ""


def _names(thread: threading.Thread) -> set[str]:
    """Return by what a thread may be known: its class, its name, and whose function it runs."""
    module = getattr(getattr(thread, "_target", None), "__module__", None) or ""
    return {type(thread).__name__, thread.name, module, module.partition(".")[0]}


def _forbids_children() -> str:
    """Return why there can be no child of this process at all, nothing where there can."""
    if sys.platform != "linux" or landlock_version() < 1:
        return "this system cannot close off a child (Linux 5.13 or later, with Landlock, can)"
    if in_use():
        return "an accelerator is in use: `trainguard run --what-if` asks on the CPU"
    if not _ignores_our_children(signal.getsignal(signal.SIGCHLD)):
        return "the script listens for the end of children"
    return ""


def _ignores_our_children(handler: Any) -> bool:
    """Say whether the end of a child means nothing here; torch's loaders ask of workers alone."""
    loaders = "torch.utils.data._utils.signal_handling"
    return handler == signal.SIG_DFL or getattr(handler, "__module__", "") == loaders


def fork(
    seconds: float,
    become: Callable[[Exit], None],
    keep: tuple[int, ...] = (),
    cut: Callable[[int], bool] | None = None,
) -> Answer | None:
    """
    Fork, and return the child's answer; in the child, return nothing.

    seconds: of processor time for the child. become: makes the child what it is to be. keep:
    descriptors that it keeps. cut: says when the child (a number), which then has what processor
    time nobody else wants, is not to be waited for any longer.
    """
    began = process_time()
    reader, writer = os.pipe()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with unrefused():
        child = _split(writer, keep, seconds, become, 0 if cut is None else _NICE)
        if not child:
            return None
        data = None
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)  # Ctrl-C raises from here on
            os.close(writer)
            data = _read_all(reader, _REAL * seconds + 2, cut and partial(cut, child))
        finally:
            os.close(reader)
            status, used = end(child, patience=0.0 if data is None else 1.0)
    report: Report = pickle.loads(data) if data else {}  # noqa: S301 our own child wrote it
    ending = "" if report else tell_ending(status, cut=data is None)
    trouble = report.pop("trouble", ending)
    return Answer(report, trouble, used + process_time() - began)


def detach(seconds: float, become: Callable[[Exit], None], report_to: int) -> int | None:
    """Fork, and return the child once it shares nothing any more; in the child, return nothing."""
    reader, writer = os.pipe()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = _split(report_to, (), seconds, become, 0)
    if not child:
        return None
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.close(writer)
        parted = select.select([reader], [], [], _REAL)[0]  # what is closed off closes this too
        os.close(reader)
    except BaseException:
        end(child, patience=0.0)
        raise
    if not parted:
        end(child, patience=0.0)
    return child


def _split(
    pipe: int, keep: tuple[int, ...], seconds: float, become: Callable[[Exit], None], nice: int
) -> int:
    """
    Fork, and return the child; in the child, which has become what it is to be, return 0.

    Signals are blocked: Ctrl-C must not raise in a child that is not closed off yet. That takes
    them again then.
    """
    streams = random.getstate()  # Python seeds its own generator anew in a child
    owner = os.getpid()
    child = _fork_quietly()
    if child:
        return child
    way_out = Exit(pipe)
    try:
        _end_with(owner)
        seal((pipe, *keep), seconds, way_out.give_up)
        log_writers.silence()
        random.setstate(streams)
        os.nice(nice)
        become(way_out)
    except BaseException as error:  # noqa: BLE001 the child may not go on with what we raise
        way_out.give_up(f"{type(error).__name__}: {error}")
    return 0


def look_apart(look: Callable[[], T], module: nn.Module | None = None) -> tuple[T | None, str]:
    """
    Return what a child sees, in plain values, and why it was not to be seen where it was not.

    Where no child can be made, this process looks for itself, unless a copy of the module that it
    runs could move something of the user's. Threads beside ours do not matter much: the child runs
    a few passes of a copy, and where it waits for a lock of theirs, it is ended soon.
    """
    if why := _forbids_children():
        if module is None or not reaches_outside(module):
            return seen(look), ""
        return None, f"its code reaches what is outside of it, and there can be no child: {why}"
    threads = threading.active_count() > 1
    answer = fork(_HURRIED if threads else _LOOKING, lambda out: out.report(seen=seen(look)))
    if answer is None or not answer.trouble:
        return (answer.report["seen"] if answer is not None else None), ""
    return None, f"the child process that tried it failed: {answer.trouble}"


def _fork_quietly() -> int:
    """Fork without Python's warning of threads, and without touching what warnings were shown."""
    warnings.filters.insert(0, _QUIET)  # type: ignore[attr-defined]
    try:
        return os.fork()
    finally:
        warnings.filters.remove(_QUIET)  # type: ignore[attr-defined]


def _end_with(parent: int) -> None:
    """Let this process end when the one that forked it does, however that ends."""
    ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENTS_END, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _read_all(reader: int, seconds: float, cut: Callable[[], bool] | None) -> bytes | None:
    """Read until the other end is closed; return None where time is over before that."""
    parts: list[bytes] = []
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0 and not (cut is not None and cut()):
        if select.select([reader], [], [], left if cut is None else min(left, _LOOK))[0]:
            part = os.read(reader, 1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def end(child: int, patience: float) -> tuple[int, float]:
    """End a child that does not end by itself; return its status and the processor time it took."""
    try:
        handle = os.pidfd_open(child)
        try:
            select.select([handle], [], [], patience)
        finally:  # Ctrl-C while it waits ends the child too
            os.close(handle)
            os.kill(child, signal.SIGKILL)  # not reaped yet, hence nobody else's
            _, status, used = os.wait4(child, 0)
    except (ChildProcessError, ProcessLookupError):
        return 0, 0.0
    return status, used.ru_utime + used.ru_stime


def starves(child: int, began: float) -> bool:
    """Say whether a child could have run since then (by the clock), and others have run instead."""
    passed = monotonic() - began
    try:
        words = Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    state, *numbers = words.rpartition(")")[2].split()
    ran = sum(map(int, numbers[10:12])) / os.sysconf("SC_CLK_TCK")  # utime and stime
    return state == "R" and passed > _STARVED and ran < passed / 2


def tell_ending(status: int, *, cut: bool) -> str:
    """Say how a child ended that has reported nothing; `cut` is whether it was ended for time."""
    if not os.WIFSIGNALED(status):
        return "it ended without an answer"
    number = os.WTERMSIG(status)
    if cut or number in (signal.SIGPROF, signal.SIGALRM):
        return "it took too long"
    name = signal.Signals(number).name
    return f"it was ended by {name}" + ": memory may be short" * (number == signal.SIGKILL)


def _memory_in_use() -> int:
    """Return how many bytes of this process are in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE


def _memory_available() -> int:
    """Return how many bytes the machine could still give."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
