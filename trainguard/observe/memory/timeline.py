"""The ledger read as a timeline: how much is held at each moment, of which category and module."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trainguard.observe.memory.allocation_log import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    TEMPORARIES,
    AllocationChange,
    AllocationLog,
    Entry,
)

ACTIVATIONS = "activations"
BLOCK = 512  # bytes, what CUDA's caching allocator rounds an allocation up to

Rounding = Callable[[int], int]


def exact(size: int) -> int:
    """Round nothing, as the allocator of the cpu does."""
    return size


def in_blocks(size: int) -> int:
    """Round up to whole blocks, as CUDA's caching allocator counts what is allocated."""
    return -(-size // BLOCK) * BLOCK


@dataclass(slots=True)
class Peak:
    """
    The moment at which most was held.

    total: bytes. entry: the storage whose making led to it. change: its place in the timeline.
    categories, modules, lines: bytes held then, by category, by module and category, and by the
    line that made them.
    """

    total: int = 0
    entry: Entry | None = None
    change: int = -1
    categories: Counter[str] = field(default_factory=Counter)
    modules: Counter[tuple[str, str]] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)


class Timeline:
    """
    What a ledger holds after each change, its storages counted as an allocator rounds them.

    Categories are known in full only when the step is over: the state of an optimizer looks like
    something temporary until the optimizer holds it. That is why this is read afterwards.
    """

    def __init__(self, ledger: AllocationLog, rounding: Rounding = exact) -> None:
        self.entries = ledger.entries
        self.changes = ledger.changes
        self.rounding = rounding
        self._settle()

    def peak(self, first_step: int = 1) -> Peak:
        """Return the moment of the peak, from a step on; building the model does not count."""
        highest = Peak()
        for place, (total, change) in enumerate(zip(self.totals(), self.changes, strict=True)):
            if change.step >= first_step and total > highest.total:
                highest = Peak(total, self.entries[change.entry], place)
        self._break_down(highest)
        return highest

    def totals(self) -> Iterator[int]:
        """Yield the bytes held after each change."""
        held: dict[int, int] = {}
        total = 0
        for change in self.changes:
            total += self._enter(held, change)
            yield total

    def by_category(self) -> Iterator[dict[str, int]]:
        """Yield the bytes held after each change by category; the same mapping, updated."""
        held: dict[int, int] = {}
        categories: Counter[str] = Counter()
        for change in self.changes:
            categories[self.entries[change.entry].category] += self._enter(held, change)
            yield categories

    def highest(self, first_step: int = 1) -> dict[str, int]:
        """Return the most that each category held at any moment, from a step on."""
        most: Counter[str] = Counter()
        for change, held in zip(self.changes, self.by_category(), strict=True):
            if change.step >= first_step:
                name = self.entries[change.entry].category
                for one in (name,) if most else held:
                    most[one] = max(most[one], held[one])
        return dict(most)

    def held_at(self, place: int) -> dict[int, int]:
        """Return the storages that are held after a change, as {number: bytes}."""
        held: dict[int, int] = {}
        for change in self.changes[: place + 1]:
            self._enter(held, change)
        return held

    def _enter(self, held: dict[int, int], change: AllocationChange) -> int:
        """Enter a change into what is held, and return by how much that grew."""
        before = held.get(change.entry, 0)
        raw = self._raw.get(change.entry, 0) + change.size if before else change.size
        self._raw[change.entry] = raw
        after = self.rounding(raw)
        if after:
            held[change.entry] = after
        else:
            held.pop(change.entry, None)
        return after - before

    def _break_down(self, peak: Peak) -> None:
        """Say what was held at the peak."""
        for number, size in self.held_at(peak.change).items():
            entry = self.entries[number]
            peak.categories[entry.category] += size
            peak.modules[entry.module, entry.category] += size
            peak.lines[entry.source] += size

    def _settle(self) -> None:
        """Name the categories that nothing but the course of the step tells."""
        self._raw: dict[int, int] = {}
        freed = {change.entry: change for change in self.changes if change.size < 0}
        for number, entry in enumerate(self.entries):
            if not entry.category:
                kept = entry.phase == RECOMPUTE or _is_kept(entry, freed.get(number))
                entry.category = ACTIVATIONS if kept else TEMPORARIES


def _is_kept(entry: Entry, freed: AllocationChange | None) -> bool:
    """Say whether a storage of the forward pass was still held when the backward pass began."""
    if entry.phase != FORWARD:
        return False
    return freed is None or freed.phase in (BACKWARD, RECOMPUTE) or freed.step > entry.step
