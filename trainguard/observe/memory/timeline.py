"""The ledger read as a timeline: how much is held at each moment, of which category and module."""

import pickle
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainguard.observe.memory.allocation_log import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    TEMPORARIES,
    AllocationChange,
    AllocationLog,
    StorageEntry,
)

ACTIVATIONS = "activations"
BLOCK = 512  # bytes, what CUDA's caching allocator rounds an allocation up to
Rounding = Callable[[int], int]
_BASE = 0x7000_0000_0000  # where the made up segment begins
_PROTOCOL = 4  # the newest that the viewer reads
# The viewer adds this category by itself, and fails in doing so, unless an event has it.
_UNKNOWN = "unknown"
_FREEING = ("free_requested", "free_completed")


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
    entry: StorageEntry | None = None
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


def _is_kept(entry: StorageEntry, freed: AllocationChange | None) -> bool:
    """Say whether a storage of the forward pass was still held when the backward pass began."""
    if entry.phase != FORWARD:
        return False
    return freed is None or freed.phase in (BACKWARD, RECOMPUTE) or freed.step > entry.step


class Space:
    """Addresses from 0 on, given out to the first gap that is large enough, and taken back."""

    def __init__(self) -> None:
        self.end = 0
        self._gaps: list[tuple[int, int]] = []  # (address, size), by address

    def take(self, size: int) -> int:
        """Return the address of so many bytes."""
        for place, (address, free) in enumerate(self._gaps):
            if free >= size:
                rest = [(address + size, free - size)] if free > size else []
                self._gaps[place : place + 1] = rest
                return address
        address, self.end = self.end, self.end + size
        return address

    def give(self, address: int, size: int) -> None:
        """Take so many bytes at an address back, and join them with the gaps beside them."""
        place = bisect_left(self._gaps, (address, 0))
        first, last = place, place
        if place and sum(self._gaps[place - 1]) == address:
            first, address = place - 1, self._gaps[place - 1][0]
            size += self._gaps[first][1]
        if place < len(self._gaps) and address + size == self._gaps[place][0]:
            size, last = size + self._gaps[place][1], place + 1
        self._gaps[first:last] = [(address, size)]


def pickle_snapshot(timeline: Timeline) -> bytes:
    """Return the file that https://docs.pytorch.org/memory_viz opens."""
    return pickle.dumps(snapshot(timeline), protocol=_PROTOCOL)


def snapshot(timeline: Timeline) -> dict[str, Any]:
    """Return a step in the form of a snapshot of one device, all of it in one segment."""
    space, live = Space(), dict[int, tuple[int, int, int]]()
    events = list(_events(timeline, space, live))
    segment = {
        "device": 0, "address": _BASE, "total_size": space.end, "stream": 0, "segment_type":
        "large", "segment_pool_id": (0, 0), "is_expandable": True, "frames": [],
        "allocated_size": sum(size for _, size, _ in live.values()),
        "active_size": sum(size for _, size, _ in live.values()),
        "requested_size": sum(raw for *_, raw in live.values()),
        "blocks": list(_blocks(timeline, space, live)),
    }  # fmt: skip
    begun = _event("segment_alloc", 0, space.end, [], _UNKNOWN)
    return {
        "segments": [segment] if space.end else [],
        "device_traces": [[begun, *events]],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _events(
    timeline: Timeline, space: Space, live: dict[int, tuple[int, int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield what was held and freed; at the end `live` holds {number: (address, size, bytes)}."""
    for change in timeline.changes:
        entry = timeline.entries[change.entry]
        frames = _frames(entry)
        address, size, raw = live.pop(change.entry, (0, 0, 0))
        if size:
            space.give(address, size)
            for action in _FREEING:
                yield _event(action, address, raw, frames, entry.category)
        raw += change.size
        if raw > 0:
            address, size = space.take(in_blocks(raw)), in_blocks(raw)
            live[change.entry] = address, size, raw
            yield _event("alloc", address, raw, frames, entry.category)


def _event(
    action: str, address: int, size: int, frames: list[dict[str, Any]], category: str
) -> dict[str, Any]:
    """Return one event of a trace."""
    return {
        "action": action, "addr": _BASE + address, "size": size, "stream": 0, "frames": frames,
        "category": category, "time_us": 0, "compile_context": "N/A", "user_metadata": category,
    }  # fmt: skip


def _blocks(
    timeline: Timeline, space: Space, live: dict[int, tuple[int, int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield what the segment holds at the end, the gaps between included, by address."""
    end = 0
    for number, (address, size, raw) in sorted(live.items(), key=lambda item: item[1]):
        if address > end:
            yield _block(end, address - end, 0, [])
        yield _block(address, size, raw, _frames(timeline.entries[number]))
        end = address + size
    if space.end > end:
        yield _block(end, space.end - end, 0, [])


def _block(address: int, size: int, raw: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one block of the segment, free where nothing of it was asked for."""
    state = "active_allocated" if raw else "inactive"
    return {
        "address": _BASE + address, "size": size, "requested_size": raw, "state": state,
        "frames": frames,
    }  # fmt: skip


def _frames(entry: StorageEntry) -> list[dict[str, Any]]:
    """Return what the viewer shows as a stack: the operation, the module, and the user's line."""
    file, _, line = entry.source.rpartition(":")
    what = f"{entry.operation or entry.category} ({entry.category}, {entry.phase}, {entry.step})"
    frames = [{"name": what, "filename": file or "??", "line": int(line or 0)}]
    if entry.module:
        frames.append({"name": entry.module, "filename": "module", "line": 0})
    return frames
