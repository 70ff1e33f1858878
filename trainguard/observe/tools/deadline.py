"""A time limit around the team's code."""

import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from trainguard.core.errors import SubjectError

_AGAIN = 0.5  # seconds until the next alarm, where one was caught or came at a bad moment
_DELETING = ("__del__", "_remove", "remove")  # the last two are callbacks of weak references


class Expired(BaseException):
    """
    Interrupts what takes too long; no `except Exception` in anyone's code can stop it.

    call: the call that was running, where that is known.
    """

    call = ""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """
    Raise SubjectError out of the block once it has run for `seconds`.

    It works by an alarm, hence in the main thread of a Unix process only, and interrupts Python
    code and sleeps, not a call that never comes back from C. Elsewhere the block runs unlimited.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return

    owner = _whose_block(inspect.currentframe())

    def expire(_signal: int, frame: FrameType | None) -> None:
        """Interrupt the block where it is, unless it is a moment that must not be interrupted."""
        if not _must_wait(frame, owner):
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "unknown place"
            raise Expired(place)

    previous = signal.signal(signal.SIGALRM, expire)
    outer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    except Expired as expired:
        raise SubjectError(
            f"it was still running after {seconds:g} seconds, at {expired}",
            "make it return, or give it more time with timeout=<seconds>",
            expired.call,
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, previous)


def _whose_block(frame: FrameType | None) -> FrameType | None:
    """Return who entered a context manager: past contextlib, and others that this one is in."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename != contextlib.__file__ and not code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back
    return frame


def _must_wait(frame: FrameType | None, owner: FrameType | None) -> bool:
    """
    Say whether Python, inside the owner's block, is deleting an object or importing a module.

    What is raised in a deletion is only printed. An import that is cut short leaves a module that
    can never be imported again, and torch imports much of itself at the first use.
    """
    while frame is not None and frame is not owner:
        code = frame.f_code
        if code.co_name in _DELETING or code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
