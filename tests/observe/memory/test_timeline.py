"""The ledger read as a timeline."""

from hypothesis import given
from hypothesis import strategies as st

from trainguard.observe.memory.allocation_log import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    RECOMPUTE,
    AllocationChange,
    AllocationLog,
    StorageEntry,
)
from trainguard.observe.memory.timeline import Timeline, in_blocks

PHASES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER)
CATEGORIES = ("", "parameters", "optimizer")


@st.composite
def ledgers(draw: st.DrawFn) -> AllocationLog:
    """Draw ledgers of storages that are made and, most of them, freed again."""
    ledger, alive = AllocationLog(), []
    for step in sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=40))):
        phase = draw(st.sampled_from(PHASES))
        if alive and draw(st.booleans()):
            number = alive.pop(draw(st.integers(0, len(alive) - 1)))
            size = -ledger.entries[number].size
        else:
            number, size = len(ledger.entries), draw(st.integers(1, 5000))
            category = draw(st.sampled_from(CATEGORIES))
            ledger.entries.append(StorageEntry(size, phase, step, "", "", "", category))
            alive.append(number)
        ledger.changes.append(AllocationChange(number, size, phase, step))
    return ledger


@given(ledgers())
def test_what_is_held_is_what_was_made_and_not_freed(ledger: AllocationLog) -> None:
    """The bytes held are the sum of all changes so far, and never negative."""
    totals = list(Timeline(ledger).totals())
    sums = [sum(c.size for c in ledger.changes[: i + 1]) for i in range(len(ledger.changes))]
    assert totals == sums
    assert min(totals) >= 0


@given(ledgers())
def test_categories_add_up(ledger: AllocationLog) -> None:
    """At each moment the categories add up to what is held, and every storage has one."""
    timeline = Timeline(ledger)
    sums = [sum(held.values()) for held in timeline.by_category()]
    assert sums == list(Timeline(ledger).totals())
    assert all(entry.category for entry in ledger.entries)


@given(ledgers())
def test_the_peak_is_the_highest_moment(ledger: AllocationLog) -> None:
    """The peak is the highest of all moments from the first step on, and is broken down whole."""
    timeline = Timeline(ledger)
    pairs = zip(timeline.totals(), ledger.changes, strict=True)
    peak = timeline.peak()
    assert peak.total == max([total for total, change in pairs if change.step >= 1], default=0)
    assert peak.total == sum(peak.categories.values()) == sum(peak.modules.values())


@given(ledgers())
def test_the_highest_of_a_category_is_its_own_maximum(ledger: AllocationLog) -> None:
    """The most that a category held is the maximum over its own course, from the first step on."""
    timeline = Timeline(ledger)
    course = [dict(held) for held in timeline.by_category()]
    wanted: dict[str, int] = {}
    for held, change in zip(course, ledger.changes, strict=True):
        if change.step >= 1:
            wanted = {n: max(held.get(n, 0), wanted.get(n, 0)) for n in {*held, *wanted}}
    found = timeline.highest()
    assert {n: s for n, s in found.items() if s} == {n: s for n, s in wanted.items() if s}


@given(ledgers())
def test_blocks_are_never_smaller(ledger: AllocationLog) -> None:
    """Counted in blocks of 512 bytes as CUDA does, at least as much is held."""
    exact, blocks = Timeline(ledger).totals(), Timeline(ledger, in_blocks).totals()
    for plain, rounded in zip(exact, blocks, strict=True):
        assert rounded >= plain
        assert rounded % 512 == 0


def test_what_the_forward_pass_keeps_is_an_activation() -> None:
    """Freed in the backward pass it is an activation, freed in the forward pass a temporary."""
    ledger = AllocationLog()
    ledger.entries = [
        StorageEntry(8, FORWARD, 1, "", "", ""),
        StorageEntry(8, FORWARD, 1, "", "", ""),
    ]
    ledger.changes = [
        AllocationChange(0, 8, FORWARD, 1),
        AllocationChange(1, 8, FORWARD, 1),
        AllocationChange(1, -8, FORWARD, 1),
        AllocationChange(0, -8, BACKWARD, 1),
    ]
    Timeline(ledger)
    assert [entry.category for entry in ledger.entries] == ["activations", "temporaries"]
