"""
A Trace is the immutable, ordered record of what an observer saw: numbers, strings and tuples.

No tensor lives here. That is why judges need no torch, why a failure report keeps no graph alive,
and why a trace can be written to a file, read back and judged again.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from math import nan
from sys import float_info
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from trainguard.events.base import Event, Plain
from trainguard.events.checkpoint import CHECKPOINT_EVENTS
from trainguard.events.component import Component
from trainguard.events.counterfactual import WhatIf
from trainguard.events.curve import Kept
from trainguard.events.loader import LOADER_EVENTS
from trainguard.events.log import LOG_EVENTS
from trainguard.events.loop import LOOP_EVENTS
from trainguard.events.parallel import Likeness
from trainguard.events.ranks import RANK_EVENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Event):
    """
    One measured quantity of a loss at its worst point, and how many points were like it.

    quantity: what was measured ("value", "gradient", "jump", ...).
    input, index: the input and the coordinate in it that the quantity belongs to.
    measured, reference: the number, and the number that it is held against where there is one.
    scale: a size to compare a difference with (a typical gradient, a noise floor).
    bad, points: how many of the points evaluated were like this one.
    point: the inputs there, as (name, nested tuples of numbers) pairs.
    label: a word that tells alike samples apart (a component's name, a kind of plateau).
    """

    quantity: str
    measured: float
    reference: float = nan
    scale: float = 0.0
    input: str = ""
    index: tuple[int, ...] = ()
    bad: int = 0
    points: int = 0
    point: tuple[tuple[str, Any], ...] = ()
    label: str = ""

    @property
    def at_zeros(self) -> bool:
        """Whether all numbers beside the one in question, in the last dimension, are zero too."""
        row: Any = dict(self.point).get(self.input)
        for place in self.index[:-1]:
            row = row[place]
        return isinstance(row, tuple) and len(row) > 1 and not any(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """
    One step of a schedule: the rates in force during it, per parameter group.

    phase: which drive of the schedule it belongs to ("run", "resumed", "flat", "improving", ...).
    step: how often the schedule had been advanced before this step; 0 is the first training step.
    rates: the rate that each parameter group was trained with in this step.
    reported: what the schedule said the rates were (`get_last_lr`); empty where it does not say.
    metric: the number fed to a plateau rule after this step; nan where none was.
    label: a word that tells alike phases apart (the scheduler whose write was lost, ...).
    """

    phase: str
    step: int
    rates: tuple[float, ...]
    reported: tuple[float, ...] = ()
    metric: float = nan
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Event):
    """
    One measured quantity of a model, of one place in it, in one drawn structure (`case`).

    quantity: what was measured ("output", "gradient", "leak", ...).
    place: the output, parameter, buffer or module that it belongs to.
    at: where in that, or under which conditions, in words ("sample 1 of 4", "seed 2").
    measured, reference: the number, and the number that it is held against where there is one.
    scale: a size to compare a difference with.
    count, of: how many were like this one, out of how many.
    sizes: the sizes of the named dimensions of the inputs.
    detail: what else the report says.
    source: file and line of the team's code where that is known.
    """

    quantity: str
    place: str = ""
    at: str = ""
    measured: float = nan
    reference: float = nan
    scale: float = nan
    count: int = 0
    of: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    detail: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Event):
    """
    One amount of memory that a training step took, in bytes where nothing else is said.

    quantity: what was measured ("peak", "category", "module", "line", "growth", ...).
    place: the category, module, line, or dimension that it belongs to.
    at: the moment: "backward of `GPT.blocks.3`, step 2".
    measured, reference: the amount, and the one that it is held against where there is one.
    count, of: how many were like this one, out of how many.
    sizes: the sizes of the named dimensions and the arguments of the factory.
    how: where the number comes from: "predicted for cuda on fake tensors", "measured on cpu".
    detail: what else the report says.
    source: file and line of the team's code that made most of it.
    """

    quantity: str
    place: str = ""
    at: str = ""
    measured: float = nan
    reference: float = nan
    count: int = 0
    of: int = 0
    sizes: tuple[tuple[str, Plain], ...] = ()
    how: str = ""
    detail: str = ""
    source: str = ""


E = TypeVar("E", bound=Event)
_RUN_EVENTS = (
    *LOADER_EVENTS,
    *LOOP_EVENTS,
    *CHECKPOINT_EVENTS,
    *LOG_EVENTS,
    *RANK_EVENTS,
    Likeness,
    WhatIf,
    Component,
)
_KINDS = (Sample, Tick, Pass, Usage, Kept, *_RUN_EVENTS)
EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True)  # without slots: with them Trace[Sample](...) raises on Python 3.11
class Trace(Generic[E]):
    """
    An ordered record of events with the conditions under which they were seen.

    subject: the name that the team gave its subject.
    conditions: device, dtype, torch version, seed, threads.
    promises: what the declaration says (peak, floor, limits, ...), as plain values.
    """

    subject: str
    events: tuple[E, ...] = ()
    conditions: Mapping[str, Plain] = field(default_factory=dict)
    promises: Mapping[str, Plain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the two mappings read-only: a judge cannot change what it judges."""
        object.__setattr__(self, "conditions", MappingProxyType(dict(self.conditions)))
        object.__setattr__(self, "promises", MappingProxyType(dict(self.promises)))

    def __iter__(self) -> Iterator[E]:
        """Iterate over the events in the order in which they were seen."""
        return iter(self.events)

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.events)

    def promise(self, name: str, case: int | None = None) -> float | None:
        """
        Return the declared number called `name`, or None where nothing was promised.

        What was drawn for one case stands in the header as `name@case` and goes before.
        """
        value = self.promises.get(f"{name}@{case}", self.promises.get(name))
        return float(value) if isinstance(value, int | float) else None

    def limit(self, invariant: str, default: float) -> float:
        """Return the subject's own limit for an invariant, or the documented default."""
        own = self.promise(f"limit:{invariant}")
        return default if own is None else own

    def to_text(self) -> str:
        """Write the trace as JSON lines: one for the header, one for each event."""
        header = {
            "subject": self.subject,
            "conditions": dict(self.conditions),
            "promises": dict(self.promises),
        }
        rows = [{"event": type(event).__name__, **asdict(event)} for event in self.events]
        return "".join(json.dumps(row) + "\n" for row in [header, *rows])

    @classmethod
    def from_text(cls, text: str) -> "Trace[E]":
        """Read back what `to_text` wrote; a line that is no event is a ValueError naming it."""
        # Not splitlines(): a string inside the JSON may hold characters that it would split at.
        lines = [_parse(row) for row in text.split("\n") if row]
        header, *rows = lines or [{}]
        told: list[Any] = [header.get(name) for name in ("subject", "conditions", "promises")]
        if [type(value) for value in told] != [str, dict, dict]:
            raise ValueError("its first line is no header")
        return cls(told[0], tuple(cast(E, _event(row)) for row in rows), told[1], told[2])


_NESTED = frozenset((list, dict))


def _parse(line: str) -> dict[str, Any]:
    """Return the object that a line of JSON holds."""
    try:
        row = _plain(json.loads(line))
    except RecursionError:
        raise ValueError(f"nested too deep: {line[:20]}") from None
    if not isinstance(row, dict):
        raise ValueError(f"no object: {line[:20]}")  # noqa: TRY004 its text is wrong
    return row


def _plain(value: Any) -> Any:
    """Turn JSON's lists back into tuples, at every depth."""
    if isinstance(value, list):
        flat = _NESTED.isdisjoint(map(type, value))
        return tuple(value) if flat else tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value


def _event(row: dict[str, Any]) -> Event:
    """Build the event that a line of JSON describes."""
    kind = EVENTS.get(str(row.pop("event", "")))
    types = {} if kind is None else _types(kind.__name__)
    if kind is None or not all(name in types and _fits(row[name], types[name]) for name in row):
        raise ValueError(f"not an event of this version of trainguard: {row}")
    try:
        return kind(**row)
    except TypeError:
        raise ValueError(f"not a whole event: {row}") from None


@cache
def _types(kind: str) -> dict[str, Any]:
    """Return what the columns of a kind of event hold."""
    return get_type_hints(EVENTS[kind])


@cache
def _type_parts(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what a type is of, and what it holds."""
    return get_origin(wanted), get_args(wanted)


def _fits(value: Any, wanted: Any) -> bool:
    """Say whether a value is one that a column may hold."""
    origin, parts = _type_parts(wanted)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if parts[-1] is ...:
            # Long columns are of one type: they are looked at as a whole.
            kinds = set(map(type, value))
            if parts[0] is float and kinds <= {float}:
                return True
            if parts[0] is int and kinds <= {int}:
                return max(map(abs, value), default=0) <= float_info.max
            return all(_fits(entry, parts[0]) for entry in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if parts:
        return any(_fits(value, part) for part in parts)
    if wanted in (int, float):
        whole = isinstance(value, int) and abs(value) <= float_info.max
        return whole or (wanted is float and type(value) is float)
    return wanted is Any or not isinstance(wanted, type) or type(value) is wanted
