"""
Write a step down as `torch.cuda.memory._snapshot()` would, for PyTorch's own memory viewer.

What is held and freed, in which order and by whom, is that of the step. Addresses are made up: each
storage takes the first gap that it fits into, in one segment. How full that segment is says nothing
of what the caching allocator of a device would reserve.
"""

import pickle
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from trainguard.observe.memory.allocation_log import Entry
from trainguard.observe.memory.timeline import Timeline, in_blocks

_BASE = 0x7000_0000_0000  # where the made up segment begins
_PROTOCOL = 4  # the newest that the viewer reads
# The viewer adds this category by itself, and fails in doing so, unless an event has it.
_UNKNOWN = "unknown"
_FREEING = ("free_requested", "free_completed")


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


def _frames(entry: Entry) -> list[dict[str, Any]]:
    """Return what the viewer shows as a stack: the operation, the module, and the user's line."""
    file, _, line = entry.source.rpartition(":")
    what = f"{entry.operation or entry.category} ({entry.category}, {entry.phase}, {entry.step})"
    frames = [{"name": what, "filename": file or "??", "line": int(line or 0)}]
    if entry.module:
        frames.append({"name": entry.module, "filename": "module", "line": 0})
    return frames
