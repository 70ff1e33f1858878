"""What has grown over the steps of a training, and how it is told."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from trainguard.events.trace import Usage
from trainguard.observe.memory import leak_holders
from trainguard.observe.memory.live_objects import LiveStorage, Mark, Place
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
_WINDOWS = 3
_SHARE = 0.75  # of the steps in each window, of which something must be there
_RECENT = 2  # steps at the end, of which much is there in any training
_FIRST = 3  # the first step that counts: before, state and caches are made
_LEAST = 4  # steps that must count
KIB = 1024
_ASKED = 4  # places whose keepers are looked for
_PLACES = 8


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


@dataclass(frozen=True, slots=True)
class Span:
    """
    The steps of which nothing should be left: from `first` to `last`.

    settled: whether what is kept until the data have been passed through once, or until a pass
    ends, cannot be in it.
    """

    first: int
    last: int
    settled: bool

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return max(0, self.last - self.first + 1)

    def steady(self, kept: Collection[int]) -> bool:
        """Say whether something is kept of nearly every one of its steps, early and late ones."""
        if self.steps < _LEAST:
            return False
        edges = [self.first + self.steps * i // _WINDOWS for i in range(_WINDOWS + 1)]
        windows = [range(a, b) for a, b in pairwise(edges)]
        return all(sum(s in kept for s in window) >= _SHARE * len(window) for window in windows)


def span(steps: int, passes: Sequence[int], served: bool) -> Span:
    """
    Return the steps to look at after so many were made.

    passes: the steps after which a pass through the data ended. served: whether a loader serves
    them. A data set may fill a cache in its first pass, and what is collected over a pass is let
    go of at its end: only what lies between two ends tells.
    """
    last = steps - _RECENT
    if not served:
        return Span(_FIRST, last, True)
    if len(passes) > 1:
        between = Span(max(_FIRST, passes[0] + 1), min(last, passes[-1]), True)
        if between.steps >= _LEAST:
            return between
    return Span(_FIRST, last, False)


@dataclass
class Growth:
    """
    What stays alive, step by step.

    span: the steps that were looked at. graphs: what is left of theirs. tensors: what is left of
    them by where it was made. host: the lines that hold ever more, and by how much per step.
    keepers: who keeps the tensors that were made somewhere; "" stands for the graphs.
    """

    span: Span
    graphs: list[Mark] = field(default_factory=list)
    tensors: dict[Place, list[LiveStorage]] = field(default_factory=dict)
    host: dict[str, LineMemory] = field(default_factory=dict)
    keepers: dict[Place | str, str] = field(default_factory=dict)

    def per_step(self, place: Place | None = None) -> float:
        """Return the bytes of tensors that are left of each step, made anywhere or at a place."""
        groups = self.tensors.values() if place is None else [self.tensors[place]]
        kept = sum(one.size for group in groups for one in group)
        return kept / max(1, self.span.steps)

    @property
    def device(self) -> str:
        """The type of device that the tensors are on: not the CPU, if another has some."""
        kinds = {one.device for group in self.tensors.values() for one in group}
        return max(kinds - {"cpu", ""}, default="cpu")

    @property
    def suspicious(self) -> bool:
        """Whether anything grows that is worth a second look."""
        return bool(self.graphs or self.host) or self.per_step() >= KIB

    def ask_keepers(self) -> None:
        """Find out who keeps what; what keeps no more than so many is no growth."""
        if self.graphs:
            keeper = leak_holders.of_graphs(self.graphs)
            self.keepers[""] = keeper.text
            self.graphs = [] if keeper.bounded else self.graphs
        largest = sorted(self.tensors, key=lambda place: -self.per_step(place))
        for place in () if self.graphs else largest[:_ASKED]:
            keeper = leak_holders.of_tensors(self.tensors[place])
            self.keepers[place] = keeper.text
            if keeper.bounded:
                del self.tensors[place]


def growth_events(growth: Growth, steps: int) -> Iterator[Usage]:
    """Yield what has grown: graphs, tensors by where they were made, memory by line."""
    how = f"measured on {growth.device} over {steps} steps"
    so_far = "" if growth.span.settled else " so far"
    tell = partial(Usage, how=how, of=growth.span.steps)
    if growth.graphs:
        yield _graphs(growth, tell)
    else:
        for place in sorted(growth.tensors, key=lambda place: -growth.per_step(place))[:_PLACES]:
            yield tell(
                quantity=f"kept tensors{so_far}",
                place=place[0],
                measured=growth.per_step(place),
                count=len({one.step for one in growth.tensors[place]}),
                detail=growth.keepers.get(place, ""),
                source=place[1],
            )
    for line, held in sorted(growth.host.items(), key=lambda pair: -pair[1].size)[:_PLACES]:
        kind = "data" if 2 * held.data >= held.size else "objects"
        yield tell(quantity=f"kept {kind}{so_far}", measured=float(held.size), source=line)


def _graphs(growth: Growth, tell: Callable[..., Usage]) -> Usage:
    """Tell of graphs that are kept: by what backward was called on where that is kept too."""
    losses = [mark for mark in growth.graphs if not mark.module]
    whole = growth.span.steady({mark.step for mark in losses})
    marks = losses if whole else [mark for mark in growth.graphs if mark.module]
    module, source = Counter((mark.module, mark.source) for mark in marks).most_common(1)[0][0]
    return tell(
        quantity="kept graphs",
        place=module,
        measured=growth.per_step(),
        count=len({mark.step for mark in marks}),
        detail=growth.keepers.get("", ""),
        source=source,
    )
