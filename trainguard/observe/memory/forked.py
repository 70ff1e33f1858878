"""
Run a function in a forked child and hand back what it returned.

On fake tensors the team's own caches (a mask kept in a module, a cached factory) would fill with
tensors that have no bytes. In a child, what they fill is gone with it.
"""

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

import torch

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.can_fork import forks

R = TypeVar("R")


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
