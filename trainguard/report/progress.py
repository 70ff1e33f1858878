"""The progress line of a run on a terminal; what the script prints there is never overwritten."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO

from trainguard.core.errors import passes_on

_EVERY = 0.5  # seconds
_CLEAR = "\r\x1b[K"


class Progress:
    """
    One line on stderr, drawn while nothing stands in its way, cleared before anything is printed.

    To know of what is printed, it puts itself before `write` of the two streams. It does so on
    terminals only: what goes to a file or a pipe never passes through here.
    """

    def __init__(self, told: Callable[[float], str], line: TextIO) -> None:
        self.told = told
        self._write, self._flush = line.write, line.flush
        self._began = monotonic()
        self._drawn = False
        self._free = True  # whether the cursor stands at the beginning of a line
        self._lock = threading.RLock()
        self._process = os.getpid()
        self.over = threading.Event()

    def text(self) -> str:
        """Return what the line says now."""
        return f"trainguard: {self.told(monotonic() - self._began)}"

    def keep_drawing(self) -> None:
        """Draw the line again and again, until the run is over or the terminal gone."""
        while not self.over.wait(_EVERY):
            with self._lock:
                if self._free and not self.over.is_set() and not self._put(_CLEAR + self.text()):
                    return
                self._drawn = self._free

    def clear(self) -> None:
        """Remove the line, if it is there."""
        with self._lock:
            if self._drawn:
                self._put(_CLEAR)
                self._drawn = False

    def before(self, write: Callable[[str], int]) -> Callable[[str], int]:
        """Return the stream's `write` with the line cleared before it."""

        @passes_on
        def write_cleared(text: str) -> int:
            """Write the script's text as it is."""
            if os.getpid() != self._process:  # a fork may have been made while the lock was held
                return write(text)
            with self._lock:
                self.clear()
                self._free = text.endswith("\n") if text else self._free
                return write(text)

        return write_cleared

    def _put(self, text: str) -> bool:
        """Write to the terminal; say whether it was still there."""
        try:
            self._write(text)
            self._flush()
        except (OSError, ValueError):  # closed by the script
            return False
        return True


@contextmanager
def progress(steps: Callable[[], int], limit: int | None) -> Iterator[None]:
    """Show how far a run is while the block lasts, where somebody is looking at a terminal."""

    def describe_progress(seconds: float) -> str:
        """Count the steps, and say how fast they are made."""
        made = steps()
        total = f" of {limit}" if limit is not None else ""
        pace = f", {made / seconds:.3g} steps/s" if made else ""
        return f"step {made}{total}, {seconds:.0f} s{pace}"

    with showing(describe_progress):
        yield


@contextmanager
def showing(told: Callable[[float], str]) -> Iterator[None]:
    """Show what `told` says after so many seconds, again and again, where there is a terminal."""
    if not _is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        yield
        return
    shown = Progress(told, sys.stderr)
    taken: list[Any] = [stream for stream in (sys.stdout, sys.stderr) if _is_terminal(stream)]
    for stream in taken:
        stream.write = shown.before(stream.write)
    threading.Thread(target=shown.keep_drawing, name="trainguard", daemon=True).start()
    try:
        yield
    finally:
        shown.over.set()
        shown.clear()
        for stream in taken:
            vars(stream).pop("write", None)


def _is_terminal(stream: TextIO | None) -> bool:
    """Say whether a stream is there and leads to a terminal."""
    return stream is not None and not stream.closed and stream.isatty()
