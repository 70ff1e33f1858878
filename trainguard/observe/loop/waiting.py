"""A process that waits for others, in a call that nothing interrupts: for too long, or in vain."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from time import monotonic, perf_counter
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

from trainguard.events.base import Plain
from trainguard.events.trace import Trace
from trainguard.observe.loop.watch.runs.collectives import Collectives
from trainguard.observe.tools.user_line import foreign, place_of, user_frame

_STILL = 5.0  # seconds in one and the same call, after the time was over
_POLL = 0.5
_WAITING = ("distributed", "nn/parallel")  # the folders of torch whose functions wait for others
_LOST = ("connection", "gloo", "nccl", "timed out")  # in what torch says of others that are gone
_WRITES = ("checkpoint", "pickle", "serialization", "shutil")  # what is never cut off


class _Watchdog(threading.Thread):
    """Sees from another thread when the main one stands still in a call of C."""

    def __init__(
        self, seconds: float, speak: Callable[[str], None], stand: Callable[[str], None]
    ) -> None:
        super().__init__(name="trainguard", daemon=True)
        self.left, self.ending = threading.Event(), threading.Lock()
        self._over, self._speak, self._stand = monotonic() + seconds, speak, stand
        self._stood = False  # whether that has been told

    def run(self) -> None:
        """Look now and then whether anything moves."""
        main, since, before = threading.main_thread().ident or 0, monotonic(), None
        while not self.left.wait(_POLL):
            frame = sys._current_frames().get(main)  # noqa: SLF001 there is no other way
            place = (id(frame), frame.f_lasti) if frame is not None else None
            if place == before and not _is_writing(frame):
                self._stay(frame, since)
                continue
            since, before = monotonic(), place
            if self._stood:
                self._stood = False
                self._stand("")

    def _stay(self, frame: FrameType | None, since: float) -> None:
        """Tell that the main thread stands still, or end the process, if it has for so long."""
        now = monotonic()
        if now - max(since, self._over) > _STILL:
            with self.ending:  # the call may fail now, as another process has ended likewise
                if not self.left.is_set():
                    self._speak(place_of(frame))
        elif now - since > _STILL and not self._stood and _name_call(_codes_inside(frame)):
            self._stood = True
            self._stand(place_of(frame))


@contextmanager
def watch_waiting(
    seconds: float | None, speak: Callable[[str], None], stand: Callable[[str], None]
) -> Iterator[None]:
    """
    Have another thread watch whether the main one waits for other processes in a call of C.

    Neither an alarm nor Ctrl-C gets through to that: Python would act on them as the call returns.
    stand: told where that is, and nothing once it goes on. speak: told likewise after so many
    seconds; it ends the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _Watchdog(inf if seconds is None else seconds, speak, stand)
    watch.start()
    try:
        yield
    finally:
        with watch.ending:
            watch.left.set()


def failed_at(error: BaseException | None) -> str:
    """Return the user's line and the call that has failed as others were gone, or nothing."""
    if not isinstance(error, RuntimeError) or not any(w in str(error).lower() for w in _LOST):
        return ""
    trace = [*walk_tb(error.__traceback__)]
    own = [i for i, (frame, _) in enumerate(trace) if foreign(frame.f_code.co_filename)]
    if not own:
        return ""
    frame, line = trace[own[-1]]
    call = _name_call(inner.f_code for inner, _ in trace[own[-1] + 1 :])
    return f"{frame.f_code.co_filename}:{line}, in {call}" if call else ""


def _codes_inside(frame: FrameType | None) -> list[CodeType]:
    """Return what the user's code has called that is running in a frame, the outermost first."""
    inside, user = [], user_frame(frame)
    while frame is not None and frame is not user:
        inside.append(frame.f_code)
        frame = frame.f_back
    return inside[::-1]


def _name_call(codes: Iterable[CodeType]) -> str:
    """Return the function that waits for other processes, the outermost of some, or nothing."""
    for code in codes:
        file, name = code.co_filename.replace("\\", "/"), code.co_name
        if any(f"/torch/{folder}/" in file for folder in _WAITING) and name != "wrapper":
            return name
        if name == "backward" and "/torch/" in file:
            return name
    return ""


def _name_recorded(recorder: Any) -> str:
    """Return what of torch.distributed a recorded process is in, or nothing."""
    if recorder.backward:
        return "backward"
    watcher = next((w for w in recorder.watchers if isinstance(w, Collectives)), None)
    return (watcher.under_way if watcher is not None else None) or ""


def end_recording(recorder: Any, place: str) -> None:
    """Write the trace from another thread: the training waits in a call that may never end."""
    standing = ", in ".join(filter(None, (place, _name_recorded(recorder))))
    recorder.ended = "stopped"
    recorder.patches.undo()
    # The recorder itself has no room for what is so rare.
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
