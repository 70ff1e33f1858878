"""A process whose time is over while it waits for others, in a call that nothing interrupts."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, perf_counter
from types import FrameType
from typing import Any

from trainguard.events.base import Plain
from trainguard.events.trace import Trace
from trainguard.observe.loop.watch.runs.collectives import Collectives
from trainguard.observe.tools.user_line import place_of

_STILL = 5.0  # seconds in one and the same call, after the time was over
_POLL = 0.5
_WRITES = ("checkpoint", "pickle", "serialization", "shutil")  # what is never cut off


@contextmanager
def watch_waiting(seconds: float | None, speak: Callable[[str], None]) -> Iterator[None]:
    """
    Have another thread speak once the main one stands still in a call of C after so many seconds.

    Neither an alarm nor Ctrl-C gets through to that: Python would act on them as the call returns.
    What speaks ends the process; it is told where that stands.
    """
    main = threading.main_thread()
    if seconds is None or threading.current_thread() is not main:
        yield
        return
    left, ending = threading.Event(), threading.Lock()

    def watch() -> None:
        """Wait for the end of the time, then look whether anything moves."""
        begun, before = monotonic(), None
        if left.wait(seconds):
            return
        while not left.wait(_POLL):
            frame = sys._current_frames().get(main.ident or 0)  # noqa: SLF001 there is no other way
            place = (id(frame), frame.f_lasti) if frame is not None else None
            if place != before or _is_writing(frame):
                begun, before = monotonic(), place
            elif monotonic() - begun > _STILL:
                with ending:  # the call may fail now, as another process has ended likewise
                    if not left.is_set():
                        speak(place_of(frame))

    threading.Thread(target=watch, name="trainguard", daemon=True).start()
    try:
        yield
    finally:
        with ending:
            left.set()


def _name_call(recorder: Any) -> str:
    """Return what of torch.distributed a recorded process is in, or nothing."""
    if recorder.backward:
        return "backward"
    watcher = next((w for w in recorder.watchers if isinstance(w, Collectives)), None)
    return (watcher.under_way if watcher is not None else None) or ""


def end_recording(recorder: Any, place: str) -> None:
    """Write the trace from another thread: the training waits in a call that may never end."""
    standing = ", in ".join(filter(None, (place, _name_call(recorder))))
    recorder._ended = "stopped"  # noqa: SLF001 the recorder itself has no room for what is so rare
    recorder.patches.undo()
    recorder._write(perf_counter() - recorder._began)  # noqa: SLF001
    recorder.trace = stand_at(recorder.trace, standing, waits=True)


def stand_at(trace: Trace[Any], place: str, *, waits: bool = False) -> Trace[Any]:
    """Return a trace that says where the training stood as its time was over, if it was."""
    told: dict[str, Plain] = {"standing": place, "waits": waits} if place else {}
    return replace(trace, conditions={**trace.conditions, **told})


def _is_writing(frame: FrameType | None) -> bool:
    """Say whether something is written to a file, which takes what time it takes."""
    while frame is not None:
        if any(word in frame.f_code.co_filename for word in _WRITES):
            return True
        frame = frame.f_back
    return False
