"""A trace of which a part is not known: what is judged by that part is not judged at all."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

from trainguard.core.errors import Unjudged
from trainguard.events.base import EVERYTHING, Event
from trainguard.events.loop import Step
from trainguard.events.trace import EVENTS, Trace


def hide_lost(trace: Trace[Any]) -> Trace[Any]:
    """
    Return a trace in which whoever reads what is not known gets Unjudged, with the reason.

    Raises it at once where nothing is known.
    """
    lost = trace.conditions.get("lost")
    names = frozenset(map(str, lost)) if isinstance(lost, tuple) else frozenset()
    if not names:
        return trace
    reason = explain_loss(trace)
    if EVERYTHING in names:
        raise Unjudged(reason)
    columns = names & {column.name for column in fields(Step)}
    events = [_mask(e, columns, reason) if isinstance(e, Step) else e for e in trace.events]
    return replace(trace, events=(*events, *_unknown_events(names, reason)))


def explain_loss(trace: Trace[Any]) -> str:
    """Return why a part of a trace is not known; nothing where all is."""
    told = trace.conditions.get("faults")
    return "; ".join(map(str, told)) if isinstance(told, tuple) else ""


def _unknown_events(names: frozenset[str], reason: str) -> Iterator[Event]:
    """Yield an event without values for each kind of which nobody knows what there was."""
    for name in sorted(names):
        kind, _, probe = name.partition(":")
        if kind in EVENTS:
            shown = {"probe": probe} if probe else {}
            hidden = frozenset(c.name for c in fields(EVENTS[kind])) - set(shown)
            yield _build(EVENTS[kind], hidden, reason, shown)


def _mask(event: Event, columns: frozenset[str], reason: str) -> Event:
    """Return an event of which some columns cannot be read."""
    values = {c.name: getattr(event, c.name) for c in fields(event) if c.name not in columns}
    return _build(type(event), columns, reason, values) if columns else event


def _build(kind: type[Event], hidden: frozenset[str], reason: str, values: dict[str, Any]) -> Event:
    """Build an event whose hidden columns raise Unjudged when they are read."""
    event: Event = object.__new__(_masked(cast(Any, kind), hidden, reason))
    for name, value in values.items():
        object.__setattr__(event, name, value)
    return event


@cache
def _masked(kind: Any, hidden: frozenset[str], reason: str) -> type[Any]:
    """Return a kind of event whose hidden columns raise Unjudged when they are read."""

    def refuse(_event: Event) -> None:
        """Say why there is no value."""
        raise Unjudged(reason)

    return type(kind.__name__, (kind,), {"__slots__": ()} | dict.fromkeys(hidden, property(refuse)))
