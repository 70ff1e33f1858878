"""What a step came to, as events; and what is raised where memory runs out."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from trainguard.core.errors import SubjectError
from trainguard.events.base import Plain
from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import MemoryExceeded, StorageEntry
from trainguard.observe.memory.timeline import Peak, Timeline

# torch's allocators say in words how much they were asked for.
_ASKED = re.compile(r"tried to allocate ([\d.]+) ([KMG]iB|bytes)", re.IGNORECASE)
_SIZES = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_IN_WORDS = ("DefaultCPUAllocator", "out of memory")
_PLACES = 12  # modules and lines told of at most
Sizes = tuple[tuple[str, Plain], ...]


@dataclass(frozen=True)
class Stop:
    """
    Why a step was not made to its end.

    refused: whether the allocator refused, and not we. held: the bytes that were held then. asked:
    those that the allocator was asked for in vain, as far as it says.
    """

    refused: bool
    held: int
    asked: int = 0

    @property
    def least(self) -> int:
        """The bytes that the step takes at the least."""
        return self.held + self.asked


def stop_of(error: BaseException, held: int) -> Stop | None:
    """
    Return why a step was stopped for want of memory; None where it was for something else.

    held: what it held when it was, which the error's traceback keeps alive.
    """
    chain = _chain(error)
    if any(isinstance(one, MemoryExceeded) for one in chain):
        return Stop(refused=False, held=held)
    refusal = next((one for one in chain if _says_so(one)), None)
    return None if refusal is None else Stop(refused=True, held=held, asked=_parse_asked(refusal))


def _parse_asked(error: BaseException) -> int:
    """Return how many bytes were asked for in vain, as far as the error says."""
    found = _ASKED.search(str(error))
    return 0 if found is None else round(float(found[1]) * _SIZES[found[2].lower()])


def _says_so(error: BaseException) -> bool:
    """Say whether an error is about memory: by its kind, or where it has none by its words."""
    kinds = (MemoryError, torch.cuda.OutOfMemoryError)
    if isinstance(error, kinds):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _IN_WORDS)


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and what it was raised from."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links


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


def moment(entry: StorageEntry | None) -> str:
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
