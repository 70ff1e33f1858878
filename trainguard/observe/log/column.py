"""
One column of a log: a bounded part of its points, and where it goes back or says a step again.

All points are kept until there are FULL of them. From there on every second is, of those every
fourth, and so on, chosen by a checksum of the step: columns of the same steps keep the same ones,
and nothing that comes back every so many steps is met at the same instant for ever. The first
points always stay, and those where a value leaps or is no number, with the one before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan
from operator import lt
from typing import NamedTuple

from trainguard.observe.log.roles import Meaning

FULL = 16384  # points of a column that are kept before they are thinned out
_FIRST = 4096  # that always stay, in a row
_REMARKABLE = 1024
_LEAP = 2.0  # times the value before, up or down
_PARTS = 4096
_GOLDEN = 0x9E3779B1  # of 2**32: its multiples come back to no period


class Point(NamedTuple):
    """A value of a column: at which step and time, the how many-th it was, in which part."""

    step: float
    value: float
    time: float
    number: int
    part: int


def draw_of(step: float) -> int:
    """Return the checksum of a step by which it is kept or not."""
    return int(step) * _GOLDEN >> 12


@dataclass(slots=True)
class Stretch:
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
    """
    Steps that were said again in a row: the first whose values differ, and how many there are.

    alike: those of which all values agree. most: how often one was said. extra: values in all.
    """

    step: float = -1.0
    values: tuple[float, float] = (nan, nan)
    steps: int = 0
    alike: int = 0
    most: int = 1
    extra: int = 0
    _at: float = -1.0
    _times: int = 1
    _differ: bool = False

    def count(self, step: float, seen: float, value: float) -> None:
        """Count a step that is said again."""
        if step != self._at:
            self.steps += 1
            self.alike += 1
            self._at, self._times, self._differ = step, 1, False
        if value != seen and not (isnan(value) and isnan(seen)) and not self._differ:
            self._differ = True
            self.alike -= 1
            self.step = step if self.alike == self.steps - 1 else self.step
            self.values = (seen, value) if self.step == step else self.values
        elif self.steps == 1 and self.step < 0:
            self.step, self.values = step, (seen, value)
        self._times += 1
        self.extra += 1
        self.most = max(self.most, self._times)


@dataclass(slots=True)
class LoggedColumn:
    """A column, as far as it is kept; `coarse` is half a unit of the last digit of its zeros."""

    name: str
    meaning: Meaning
    source: str = ""
    points: list[Point] = field(default_factory=list)
    parts: list[Stretch] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)
    count: int = 0
    coarse: float = 0.0
    nonfinite: int = 0
    zeros: int = 0
    _rest: list[Point] = field(default_factory=list)
    _leaps: list[Point] = field(default_factory=list)
    _mask: int = 0
    _step: float = -inf
    _value: float = nan
    _time: float = nan
    _kept: int = -1

    def add(self, steps: Sequence[float], values: Sequence[float], times: Sequence[float]) -> None:
        """Take in values of rows in a row; most are like the one before, and are only counted."""
        if self.count >= _FIRST and self._go_on(steps, values):
            self._add_alike(steps, values, times)
            return
        last, before, time = self._value, self._step, self._time
        for step, value, when in zip(steps, values, times, strict=True):
            alike = value == last or (last < _LEAP * value and value < _LEAP * last)
            draw = int(step) * _GOLDEN >> 12  # as draw_of, which would be called a million times
            if alike and step > before and draw & self._mask and self.count >= _FIRST:
                self.count += 1
            else:
                self._step, self._value, self._time = before, last, time
                if step <= before and self._goes_back(step, value, when):
                    continue
                part = max(0, len(self.parts) - 1)
                self._keep(Point(step, value, when, self.count, part), draw, alike)
                self.count += 1
            last, before, time = value, step, when
        self._step, self._value, self._time = before, last, time

    def _go_on(self, steps: Sequence[float], values: Sequence[float]) -> bool:
        """Say whether all steps count on, and all values are like each other and the last one."""
        if not (self._step < steps[0] and all(map(lt, steps, steps[1:]))):
            return False
        least, most = min(self._value, *values), max(self._value, *values)
        # The sum tells of a nan, which the least and the most may pass over.
        return (least == most or most < _LEAP * least) and isfinite(sum(values) + self._value)

    def _add_alike(
        self, steps: Sequence[float], values: Sequence[float], times: Sequence[float]
    ) -> None:
        """Take in values that go on: those that are drawn are kept, all are counted."""
        count, part, mask = self.count, max(0, len(self.parts) - 1), self._mask
        for at, step in enumerate(steps):
            draw = int(step) * _GOLDEN >> 12
            if not draw & mask:
                self._keep(Point(step, values[at], times[at], count + at, part), draw, alike=True)
        self.count = count + len(steps)
        self._step, self._value, self._time = steps[-1], values[-1], times[-1]

    def _keep(self, point: Point, draw: int, alike: bool) -> None:
        """Keep a point, as far as there is room for one of its kind."""
        if not self.parts:
            self._begin(point.step, point.time, rewound=False)
        if not isfinite(point.value):
            self.nonfinite += 1
        self.zeros += point.value == 0
        if point.number < _FIRST:
            self.points.append(point)
        elif not draw & self._mask:
            self._rest.append(point)
            if len(self._rest) > FULL:
                self._thin()
        elif not alike and len(self._leaps) < _REMARKABLE:
            if self._kept < point.number - 1:
                self._leaps.append(self._last(point.part))
            self._leaps.append(point)
        else:
            return
        self._kept = point.number

    def _last(self, part: int) -> Point:
        """Return the point that was added last."""
        return Point(self._step, self._value, self._time, self.count - 1, part)

    def _thin(self) -> None:
        """Keep about every second of the points that are not the first."""
        self._mask = self._mask << 1 | 1
        self._rest = [p for p in self._rest if not draw_of(p.step) & self._mask]

    def _goes_back(self, step: float, value: float, time: float) -> bool:
        """Begin a new part where the counter went back; say whether a step is said again."""
        if step == self._step:
            self.repeats.count(step, self._value, value)
            self.nonfinite += not isfinite(value)
            return True
        self._begin(step, time, rewound=True)
        return False

    def _begin(self, step: float, time: float, *, rewound: bool) -> None:
        """Begin a new part."""
        if self.parts:
            self._close()
        if len(self.parts) < _PARTS:
            self.parts.append(Stretch(self.source, self.count, step, time, rewound=rewound))

    def _close(self) -> None:
        """Note where the part that is open ends, and keep its last point."""
        part = self.parts[-1]
        part.last, part.until = self._step, self._time
        if self._kept < self.count - 1:
            self._leaps.append(self._last(len(self.parts) - 1))
            self._kept = self.count - 1

    def finish(self) -> "LoggedColumn":
        """Put the points that were kept in order, once all have been added."""
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
        if fills and not any(abs(p.value) == inf for p in self.points):
            self.points = [p for p in self.points if not isnan(p.value)]
            self.count, self.nonfinite = known, 0

    def follow(self, other: "LoggedColumn") -> None:
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
