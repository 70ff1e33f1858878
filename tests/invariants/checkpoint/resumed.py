"""Traces of runs that were resumed, written by hand, and what is said of them."""

from typing import Any

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.base import Event
from trainguard.events.checkpoint import Departure, Part, Resumption
from trainguard.events.trace import Trace


def judged(name: str, *events: Event, **promises: Any) -> list[Finding]:
    """Return what an invariant finds in some events."""
    (made,) = find_invariants(f"checkpoint.{name}")
    return list(made.judge(Trace("train", events, {}, promises)))


def resumption(**columns: Any) -> Resumption:
    """Return a run of 12 steps that was killed after 6 and went on from there."""
    told = {"saved": 6, "began": 6, "made": 6, "left": 6, "ended": True}
    return Resumption(**{**told, **columns})


def departs(quantity: str, after: int = 0, **columns: Any) -> Departure:
    """Return the first step at which a quantity differs."""
    return Departure(quantity=quantity, step=6 + after, after=after, compared=6, **columns)


def lost(kind: str, name: str = "AdamW", **columns: Any) -> Part:
    """Return a part of the state that was not restored."""
    return Part(kind=kind, name=name, same=False, **columns)


WHOLE = (
    resumption(),
    *(Part(kind=kind, name="Net", of=4) for kind in ("parameters", "buffers", "optimizer")),
    Part(kind="generator", name="torch", of=1),
    *(Departure(quantity=quantity, compared=6) for quantity in ("rate", "batch", "loss")),
    Departure(quantity="parameters", compared=6),
)
