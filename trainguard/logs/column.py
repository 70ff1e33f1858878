"""
One column of a log: a bounded part of its points, and where it goes back or says a step again.

All points are kept until there are FULL of them. From there on every second is, of those every
fourth, and so on, chosen by a checksum of the step: columns of the same steps keep the same ones,
and nothing that comes back every so many steps is met at the same instant for ever. The first
points always stay, and those where a value leaps or is no number, with the one before.
"""

from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan
from typing import NamedTuple

from trainguard.logs.roles import Meaning

FULL = 16384  # points of a column that are kept before they are thinned out
_FIRST = 4096  # that always stay, in a row
_REMARKABLE = 1024
_LEAP = 2.0  # times the value before, up or down
_PARTS = 4096
_GOLDEN = 0x9E3779B97F4A7C15  # of 2**64: its multiples come back to no period


class Point(NamedTuple):
    """A value of a column: at which step and time, the how many-th it was, in which part."""

    step: float
    value: float
    time: float
    number: int
    part: int


_NOTHING = Point(-1.0, nan, nan, -1, 0)


@dataclass(slots=True)
class Part:
    """A part that counts on without going back: its file, and how many points it begins after."""

    source: str
    begin: int
    first: float
    time: float
    last: float = 0.0
    until: float = nan
    rewound: bool = False


@dataclass(slots=True)
class Repeats:
    """Steps that were said again in a row, and how often in all."""

    step: float = 0.0
    values: tuple[float, float] = (nan, nan)
    steps: int = 0
    alike: int = 0
    most: int = 1
    extra: int = 0


@dataclass(slots=True)
class Column:
    """A column, as far as it is kept; `coarse` is half a unit of the last digit of its zeros."""

    name: str
    meaning: Meaning
    points: list[Point] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)
    count: int = 0
    coarse: float = 0.0
    nonfinite: int = 0
    zeros: int = 0
    _rest: list[Point] = field(default_factory=list)
    _leaps: list[Point] = field(default_factory=list)
    _mask: int = 0
    _before: Point = _NOTHING
    _kept: int = -1
    _again: int = 1

    def add(self, step: float, value: float, time: float, source: str) -> None:
        """Take a value in."""
        before = self._before
        if not self.parts or step <= before[0] or source is not self.parts[-1].source:
            if self.parts and step == before[0] and source is self.parts[-1].source:
                self._say_again(step, value)
                return
            self._begin(step, time, source, rewound=bool(self.parts) and step <= before[0])
        if self._again > 1:
            self._end_of_repeat()
        index = self.count
        self.count = index + 1
        point = Point(step, value, time, index, len(self.parts) - 1)
        self._before = point
        leaps = not -1e308 < value < 1e308
        if leaps:
            self.nonfinite += 1
        elif value == 0:
            self.zeros += 1
        if index < _FIRST:
            self.points.append(point)
            self._kept = index
        elif not int(step) * _GOLDEN >> 20 & self._mask:
            self._rest.append(point)
            self._kept = index
            if len(self._rest) > FULL:
                self._thin()
        elif leaps or not before[1] / _LEAP <= value <= before[1] * _LEAP:
            self._remember(before, point)

    def _remember(self, before: Point, point: Point) -> None:
        """Keep a point that is unlike the one before, and that one."""
        if len(self._leaps) < _REMARKABLE:
            if self._kept < before.number:
                self._leaps.append(before)
            self._leaps.append(point)
            self._kept = point.number

    def _thin(self) -> None:
        """Keep about every second of the points that are not the first."""
        self._mask = self._mask << 1 | 1
        self._rest = [p for p in self._rest if not int(p.step) * _GOLDEN >> 20 & self._mask]

    def _begin(self, step: float, time: float, source: str, *, rewound: bool) -> None:
        """Begin a new part: another file, or a counter that went back."""
        if self.parts:
            self._close()
        if len(self.parts) < _PARTS:
            self.parts.append(Part(source, self.count, step, time, rewound=rewound))

    def _close(self) -> None:
        """Note where the part that is open ends."""
        self.parts[-1].last, self.parts[-1].until = self._before.step, self._before.time

    def _say_again(self, step: float, value: float) -> None:
        """Count a step that is said more than once; the first value stays."""
        told, seen = self.repeats, self._before.value
        if self._again == 1:
            told.steps += 1
            told.alike += 1
            if told.steps == 1:
                told.step, told.values = step, (seen, value)
        if self._again >= 1 and value != seen and not (isnan(value) and isnan(seen)):
            told.alike -= self._again < 1 << 30
            if told.values[0] == told.values[1]:
                told.step, told.values = step, (seen, value)
            self._again += 1 << 30  # counted as different once
        if not isfinite(value):
            self.nonfinite += 1
        self._again += 1
        told.extra += 1

    def _end_of_repeat(self) -> None:
        """Note how often the last step was said."""
        self.repeats.most = max(self.repeats.most, self._again % (1 << 30))
        self._again = 1

    def finish(self) -> "Column":
        """Put the points that were kept in order, once all have been added."""
        if self._again > 1:
            self._end_of_repeat()
        if self.parts:
            self._close()
        merged = {p.number: p for p in (*self.points, *self._rest, *self._leaps)}
        self.points = [merged[index] for index in sorted(merged)]
        self._rest, self._leaps = [], []
        self._drop_filler()
        return self

    def _drop_filler(self) -> None:
        """Drop values that are no number where they fill the rows that have none."""
        known = self.count - self.nonfinite
        ends = bool(self.points) and isfinite(self.points[-1].value)
        fills = self.nonfinite > known > 1 and ends
        if fills and not any(abs(p.value) == float("inf") for p in self.points):
            self.points = [p for p in self.points if not isnan(p.value)]
            self.count, self.nonfinite = known, 0

    def follow(self, other: "Column") -> None:
        """Put a column of a later file behind this one; both are finished."""
        shift, parts = self.count, len(self.parts)
        rewinds = bool(self.parts) and other.parts[0].first <= self.parts[-1].last
        self.points += [
            p._replace(number=p.number + shift, part=p.part + parts) for p in other.points
        ]
        for at, part in enumerate(other.parts):
            back = part.rewound or (at == 0 and rewinds)
            self.parts.append(replace(part, begin=part.begin + shift, rewound=back))
        self.count += other.count
        self.coarse = max(self.coarse, other.coarse)
        self.nonfinite += other.nonfinite
        self.zeros += other.zeros
