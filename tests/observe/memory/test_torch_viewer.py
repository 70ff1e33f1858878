"""The snapshot of a step: what PyTorch's own memory viewer reads, and what it fails on."""

import pickle
import pickletools
from contextlib import redirect_stdout
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import _memory_viz

from trainguard.observe.memory.allocation_log import AllocationChange, AllocationLog, StorageEntry
from trainguard.observe.memory.timeline import Space, Timeline, in_blocks, pickle_snapshot, snapshot

# What MemoryViz.js can read of a pickle; it raises for any other operation.
OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT",
    "BINUNICODE", "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1",
    "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO",
    "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip


def step(sizes: list[int]) -> Timeline:
    """Return a step that holds storages, lets every other one go, and then all but the first."""
    ledger = AllocationLog()
    ledger.entries = [
        StorageEntry(size, "forward", 1, "Net.0", "mm", "net.py:3", "activations") for size in sizes
    ]
    ledger.entries[0] = StorageEntry(sizes[0], "build", 0, "", "", "", "parameters")
    odd = [place for place in range(1, len(sizes)) if place % 2]
    even = [place for place in range(1, len(sizes)) if not place % 2]
    ledger.changes = [
        AllocationChange(place, size, "forward", 1) for place, size in enumerate(sizes)
    ]
    ledger.changes += [AllocationChange(place, -sizes[place], "backward", 1) for place in odd]
    ledger.changes += [AllocationChange(0, 512, "optimizer", 1)]  # the first one grows
    ledger.changes += [AllocationChange(place, -sizes[place], "backward", 1) for place in even]
    return Timeline(ledger, in_blocks)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=12))
def test_torch_reads_it(sizes) -> None:
    """Torch's own functions take the snapshot; they add up its blocks and segments, and assert."""
    data = pickle.loads(pickle_snapshot(step(sizes)))
    told = _memory_viz.segsum(data)
    assert "segments: 1\n" in told
    with redirect_stdout(StringIO()) as printed:
        assert "Device 0" in _memory_viz.trace(data)
    assert printed.getvalue() == ""
    for draw in (_memory_viz.memory, _memory_viz.segments):
        assert f" {sizes[0] + 512}\n" in draw(data, format_flamegraph=str)
    assert "MemoryViz.js" in _memory_viz.trace_plot(data)
    assert "MemoryViz.js" in _memory_viz.segment_plot(data)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=12))
def test_the_viewer_reads_it(sizes) -> None:
    """It holds operations that the viewer knows, and what the viewer looks up without asking."""
    file = pickle_snapshot(step(sizes))
    assert {code.name for code, _, _ in pickletools.genops(file)} <= OPCODES
    assert 2 <= file[1] <= 4  # the versions of pickle that it takes
    (segment,) = snapshot(step(sizes))["segments"]
    first, end = segment["address"], segment["address"] + segment["total_size"]
    (events,) = snapshot(step(sizes))["device_traces"]
    held: dict[int, int] = {}
    for event in events[1:]:
        assert first <= event["addr"] < event["addr"] + event["size"] <= end
        if event["action"] == "alloc":
            assert event["addr"] not in held
            held[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert held.pop(event["addr"]) == event["size"]
    live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert {block["address"]: block["requested_size"] for block in live} == held
    assert "unknown" in {event["category"] for event in events}  # or the viewer fails
    assert all(frame["filename"] for event in events for frame in event["frames"])


def test_who_made_it_is_told() -> None:
    """The stack of a storage is its operation and category, its line, and its module."""
    event = snapshot(step([512, 1024]))["device_traces"][0][2]
    assert event["frames"] == [
        {"name": "mm (activations, forward, 1)", "filename": "net.py", "line": 3},
        {"name": "Net.0", "filename": "module", "line": 0},
    ]
    assert (event["action"], event["size"], event["category"]) == ("alloc", 1024, "activations")


def test_a_step_that_holds_nothing() -> None:
    """There is no segment then, and still a trace."""
    data = snapshot(Timeline(AllocationLog(), in_blocks))
    assert data["segments"] == []
    assert [event["action"] for event in data["device_traces"][0]] == ["segment_alloc"]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_addresses_never_overlap(turns) -> None:
    """What is taken lies apart from all that is held, and what is given back is used again."""
    space, held = Space(), []
    for gives, size in turns:
        if gives and held:
            space.give(*held.pop(size % len(held)))
            continue
        address = space.take(size)
        assert all(address + size <= other or other + more <= address for other, more in held)
        held.append((address, size))
    for address, size in held:
        space.give(address, size)
    end = space.end
    assert end == 0 or (space.take(end) == 0 and space.end == end)  # one gap is left
