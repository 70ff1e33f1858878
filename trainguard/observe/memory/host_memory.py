"""Memory of Python and NumPy, by the line of the user's code that asked for it: tracemalloc."""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from trainguard.observe.tools.user_line import foreign

_SMALL = 256  # bytes: of numbers, names, and what Python's own caches keep of operations
_LARGE = 4096  # bytes: of data, whatever holds them
_NUMPY = 389047  # the domain in which NumPy tells tracemalloc of its arrays
_FRAMES = 16  # of each allocation: a line of the user's code stands behind those of libraries
_PACKAGE = str(Path(__file__).parents[2])
# What keeps records of its own for a while: of a log, of warnings, of what was compiled.
_RECORDING = ("/logging/", "/warnings.py", "/linecache.py", "/traceback.py", "/_pytest/",
              "/tracemalloc.py", "/torch/_dynamo/", "/torch/_inductor/", "/torch/fx/", "/sympy/",
              "/torch/utils/_python_dispatch.py", "<frozen importlib", "/importlib/",
              "/torch/_ops.py", "/torch/_library/")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineMemory:
    """What a line holds: bytes, and how many of them are data: arrays, or large blocks."""

    size: int = 0
    data: int = 0


class HostMemory:
    """Looks, one after the other, at what each line of the user's code holds."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, dict[str, LineMemory]]] = []

    @contextmanager
    def follow(self) -> Iterator[None]:
        """End what `begin` began."""
        running = tracemalloc.is_tracing()
        try:
            yield
        finally:
            if not running:
                tracemalloc.stop()

    def begin(self) -> None:
        """Follow allocations from here on; those made before do not count."""
        if not tracemalloc.is_tracing():
            tracemalloc.start(_FRAMES)

    def look(self, step: int) -> None:
        """Look at what is held after a step."""
        sizes: dict[str, list[int]] = {}
        for trace in tracemalloc.take_snapshot().traces:
            line = _line(trace.traceback) if trace.size >= _SMALL else ""
            if line:
                held = sizes.setdefault(line, [0, 0])
                held[0] += trace.size
                if trace.domain == _NUMPY or trace.size >= _LARGE:
                    held[1] += trace.size
        self.looks.append((step, {line: LineMemory(*held) for line, held in sizes.items()}))

    def growing(self, least: float, first: int) -> dict[str, LineMemory]:
        """
        Return the lines that hold more after every look, and by how much per step.

        least: the bytes per step that a line must have grown by between any two looks from the
        step `first` on.
        """
        looks = [(step, held) for step, held in self.looks if step >= first]
        if len(looks) < 3:
            return {}
        steps = looks[-1][0] - looks[0][0]
        grown = {}
        for line, last in looks[-1][1].items():
            course = [(step, held.get(line, LineMemory())) for step, held in looks]
            if _rises(course, least):
                begun = course[0][1]
                size, data = last.size - begun.size, last.data - begun.data
                grown[line] = LineMemory(size // steps, data // steps)
        return grown


def _rises(course: Sequence[tuple[int, LineMemory]], least: float) -> bool:
    """Say whether a line grew by so many bytes per step between any two looks."""
    pairs = pairwise(course)
    return all(after.size - held.size >= least * (b - a) for (a, held), (b, after) in pairs)


def _line(traceback: tracemalloc.Traceback) -> str:
    """
    Return the user's line behind an allocation, or nothing.

    Nothing where our own code stands between: that is our memory. Nothing either where something
    that keeps records does, such as a handler of a log that pytest installed.
    """
    for frame in reversed(traceback):  # the innermost last
        ends, counts = _kind(frame.filename)
        if ends:
            return f"{frame.filename}:{frame.lineno}" if counts else ""
    return ""


@cache
def _kind(file: str) -> tuple[bool, bool]:
    """Say whether a file decides whose an allocation is, and whether it is the user's then."""
    if file.startswith(_PACKAGE) or any(part in file for part in _RECORDING):
        return True, False
    return foreign(file), True
