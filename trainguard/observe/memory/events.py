"""What a step came to, as events: its peak, and what was held then, by category and module."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from trainguard.core.errors import SubjectError
from trainguard.events.base import Plain
from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import Entry
from trainguard.observe.memory.out_of_memory import Stop
from trainguard.observe.memory.timeline import Peak, Timeline

_PLACES = 12  # modules and lines told of at most

Sizes = tuple[tuple[str, Plain], ...]


def events(
    timeline: Timeline, how: str, sizes: Sizes, detail: str, stop: Stop | None = None
) -> Iterator[Usage]:
    """
    Yield the peak of a step, the highest of each category, and what made up the peak.

    stop: why it was not made to its end; the peak is then what it takes at the least.
    """
    peak = timeline.peak()
    if not peak.total and stop is None:
        raise SubjectError(
            "its step allocates nothing, so there is nothing to hold against its budget",
            "look at whether anything is called in it",
        )
    tell = _teller(how, sizes, detail)
    source = largest_line(peak)
    last = timeline.entries[-1] if timeline.entries else None
    at = moment(peak.entry if stop is None else last)
    yield tell("peak", "", at, max(peak.total, stop.least if stop else 0), source)
    if stop is not None:
        seen = tell("stopped", "", at, stop.held, source, stop.asked)
        yield replace(seen, count=int(stop.refused))
    for category, most in sorted(timeline.highest().items()):
        yield tell("category", category, "", most, "", peak.categories[category])
    for (module, category), held in peak.modules.most_common(_PLACES):
        yield tell("module", f"{module or 'outside of modules'}, {category}", "", held, "")
    for line, held in peak.lines.most_common(_PLACES):
        yield tell("line", line, "", held, line)


def moment(entry: Entry | None) -> str:
    """Say in words when a storage was made."""
    if entry is None:
        return ""
    where = f" of `{entry.module}`" if entry.module else ""
    phase = {"optimizer": "step of the optimizer", "recompute": "recomputation"}
    return f"{phase.get(entry.phase, entry.phase)}{where}, step {entry.step}"


def _teller(how: str, sizes: Sizes, detail: str) -> Callable[..., Usage]:
    """Return what makes the events of one step."""

    def tell(
        quantity: str, place: str, at: str, held: int, source: str, then: float = float("nan")
    ) -> Usage:
        """Make one event; `then` is what was held of it at the peak."""
        return Usage(
            quantity=quantity, place=place, at=at, measured=float(held), reference=float(then),
            sizes=sizes, how=how, detail=detail, source=source,
        )  # fmt: skip

    return tell


def largest_line(peak: Peak) -> str:
    """Return the line that made most of what was held at the peak."""
    return next((line for line, _ in peak.lines.most_common() if line), "")
