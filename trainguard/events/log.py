"""The events of a log that somebody else wrote: what it shows beside the numbers themselves."""

from dataclasses import dataclass
from math import nan

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart(Event):
    """
    A part of a log that counts on without going back: one file, or what was logged after a resume.

    case is its number; Steps of it have the same.
    source: the file. first, last: the steps of its first and last row; rows: how many it has.
    rewound: whether it begins before the end of the part before.
    replaced: (step, loss, rate) of the part before that this one says again; nan where not said.
    pause: seconds since the part before; nan where unknown.
    """

    source: str = ""
    first: int = 0
    last: int = 0
    rows: int = 0
    rewound: bool = False
    replaced: tuple[tuple[int, float, float], ...] = ()
    pause: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat(Event):
    """
    Steps that one column says more than once without having gone back.

    column, source: of what, and in which file. step, values: the first such step, and two values.
    steps: how many such steps there are, of how many; alike: in how many of them all values agree.
    most, least: how often a step is said at most and at least, of all steps.
    exact: whether the format has one row for a step, as a printed line has not.
    """

    column: str
    source: str = ""
    step: int = 0
    values: tuple[float, float] = (nan, nan)
    steps: int = 0
    of: int = 0
    alike: int = 0
    most: int = 1
    least: int = 1
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted(Event):
    """
    An allocation that failed for want of memory, as torch told it; bytes, 0 where not told.

    step: the last one that was logged before. source: the file and the line of the log.
    """

    step: int = 0
    asked: float = 0.0
    capacity: float = 0.0
    free: float = 0.0
    allocated: float = 0.0
    reserved: float = 0.0
    source: str = ""


LOG_EVENTS = (LogPart, Repeat, Exhausted)
