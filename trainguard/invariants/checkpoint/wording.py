"""How the judges of checkpoints read a trace."""

from trainguard.core.measure import Measure
from trainguard.events.base import Event
from trainguard.events.checkpoint import Departure, Part, Resumption
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import events


def resumption(trace: Trace[Event]) -> Resumption:
    """Return how the run went on that was killed after a save."""
    return events(trace, Resumption)[0]


def lost_parts(trace: Trace[Event]) -> list[Part]:
    """Return the parts of the state that are other ones after the resume, but for generators."""
    return [p for p in events(trace, Part) if not p.same and p.kind != "generator"]


def departure(trace: Trace[Event], quantity: str) -> Departure | None:
    """Return the first step at which a quantity of the resumed run is another one, if any."""
    found = (d for d in events(trace, Departure) if d.quantity == quantity and d.step >= 0)
    return next(found, None)


def began_anew(trace: Trace[Event]) -> bool:
    """Say whether a resumed run has nothing of the one before."""
    told = resumption(trace)
    return told.began == 0 < told.saved and told.made > 0


def comparable(trace: Trace[Event]) -> bool:
    """Say whether a run was resumed at all, and made steps that can be compared."""
    told = resumption(trace)
    return not told.error and told.made > 0 and not began_anew(trace)


def format_count(count: int, word: str) -> Measure:
    """Write a number of things."""
    return Measure(f"{count} {word}{'' if count == 1 else 's'}", count, f"{word}s")
