"""Child processes: whether one can be forked and train; calls and commands that run in one."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch

from trainguard.core.errors import SubjectError
from trainguard.observe.tools import supervise
from trainguard.observe.tools.devices import present

# What a child of ours exits with, as the commands do: where it cannot record, where the team's code
# fails, where trainguard fails.
USAGE, FAILED, OURS = 2, 3, 4
_MOST = 40  # lines of stderr that are shown
R = TypeVar("R")
_PDEATHSIG = 1  # of prctl: which signal to get when the parent ends
_TAIL = 16_384  # bytes of it that are looked at


class Stderr(Exception):
    """Carries the end of what a script wrote to stderr, where a report shows what it raised."""

    # So that it is shown as `Stderr: ...`, without the module that nobody asked for.
    __module__ = "builtins"


def run_to_end(command: Sequence[str], folder: Path, errors: Path, seconds: float) -> int:
    """Run a command to its end, or to ours, and take all that it started with it."""
    with errors.open("wb") as stderr, _lifeline() as (wrapper, passed):
        process = subprocess.Popen(  # noqa: S603 to run it is what was declared
            [*wrapper, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            pass_fds=passed,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SubjectError(
                f"it was still running after {seconds:g} seconds",
                "make it return, end it with steps=<count>, or give it more with timeout=<seconds>",
            ) from None
        finally:
            if process.poll() is None:
                end_child(process.pid) if hasattr(os, "killpg") else process.kill()
                process.wait()


@contextmanager
def _lifeline() -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Yield the command that ends another one with us, and the pipe that tells it of our end."""
    if not hasattr(os, "killpg"):
        yield [], ()
        return
    reading, writing = os.pipe()
    try:
        yield [sys.executable, "-IS", supervise.__file__, str(reading)], (reading,)
    finally:
        os.close(reading)
        os.close(writing)


def failure(code: int, call: str, errors: Path) -> SubjectError:
    """Say what kept a child from recording, with the end of its stderr underneath."""
    with errors.open("rb") as stderr:
        stderr.seek(max(0, errors.stat().st_size - _TAIL))
        lines = stderr.read().decode(errors="replace").rstrip().splitlines()
    if code == OURS:
        raise RuntimeError("\n".join(lines))
    last = lines[-1] if lines else "it says nothing"
    if code == USAGE and lines:
        sentence, *remedy = lines[-2:]
        return SubjectError(sentence.rstrip("."), " ".join(remedy), call)
    if code == FAILED:
        fault = SubjectError(f"it failed: {last}", "make it run by itself first", call)
    elif code < 0:
        fault = SubjectError(f"it was ended by {signal.Signals(-code).name}", call=call)
    else:
        fault = SubjectError(f"it ended with exit code {code}: {last}", call=call)
    fault.__cause__ = Stderr("\n".join(["", *lines[-_MOST:]]))
    return fault


def forks() -> bool:
    """
    Say whether a forked child can train.

    Not where there is an accelerator, awake or not: from the first backward pass on autograd has a
    thread for each device, and refuses to go backward in a child of that process.
    """
    return sys.platform == "linux" and present() == ("cpu",) and _goes_backward_in_a_child()


def go_backward() -> None:
    """
    Make the smallest backward pass there is: at its first one, autograd counts the devices.

    To be called before tensors are made fake: on a machine without an accelerator, torch pretends
    from then on that there is one, and some versions (2.15) would count it.
    """
    with torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()  # type: ignore[no-untyped-call]


@cache
def _goes_backward_in_a_child() -> bool:
    """Try it once: fake tensors of other code, such as torch.compile, may have come before."""
    go_backward()
    child = fork_child(go_backward)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def fork_child(work: Callable[[], int | None]) -> int:
    """Fork a child that exits with what `work` returns, and return its process number."""
    parent = os.getpid()
    # Of Python 3.12: nothing that holds a lock is used. Not by `catch_warnings`, at which Python
    # forgets which warnings it has shown, and shows them again.
    shown, warnings.filters = warnings.filters, [("ignore", None, Warning, None, 0)]
    try:
        child = os.fork()
    finally:
        warnings.filters = shown
    if not child:
        code: int | None = 1
        end_with(parent)
        try:
            code = work()
        finally:
            os._exit(code or 0)
    return child


def end_with(parent: int) -> None:
    """Let Linux end this process when its parent ends, however that is."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_child(child: int) -> None:
    """End a child with whatever it has started, and let the system forget it."""
    for end in (os.killpg, os.kill):
        with suppress(OSError):
            end(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def call_in_child(function: Callable[[], R]) -> R:
    """
    Return what the function returns in a forked child; in this process where none can be forked.

    What it raises is raised as a SubjectError in the words of the exception: its traceback stays
    in the child.
    """
    if not forks():
        return function()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, ValueError, OSError):  # there is none, or it is closed
            stream.flush()  # type: ignore[union-attr]  # the child would write it a second time
    reading, writing = os.pipe()
    child = fork_child(lambda: _answer(function, reading, writing))
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            returned, fault = _receive(pipe)
    finally:
        end_child(child)
    if fault is not None:
        raise fault
    result: R = returned
    return result


def _answer(function: Callable[[], Any], reading: int, writing: int) -> None:
    """Be the child: call the function, and write what became of it."""
    answer: tuple[Any, SubjectError | None]
    os.close(reading)
    try:
        torch.set_num_threads(1)  # threads of the parent's pool do not exist here
        answer = function(), None
    except SubjectError as fault:
        answer = None, SubjectError(fault.sentence, fault.remedy)
    except BaseException as error:  # noqa: BLE001 whatever it is, the parent decides
        told = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        answer = None, SubjectError(f"it raised {told}", "run it on real tensors to see where")
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(answer, pipe)


def _receive(pipe: BinaryIO) -> tuple[Any, SubjectError | None]:
    """Read what the child wrote; one that died before it could is a fault of what it ran."""
    try:
        answer: tuple[Any, SubjectError | None] = pickle.load(pipe)  # noqa: S301 our own child's
    except EOFError:
        remedy = "look at what it calls outside of Python"
        return None, SubjectError("it ended the process that predicts its memory", remedy)
    return answer
