"""The course of a step: few moments that keep the peak, whose phases are told."""

from hypothesis import given
from hypothesis import strategies as st

from trainguard.observe.memory.allocation_log import AllocationChange, AllocationLog, StorageEntry
from trainguard.observe.memory.step_profile import course
from trainguard.observe.memory.timeline import Timeline, exact

KINDS = ("parameters", "activations", "temporaries")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 1000)), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_the_peak_is_kept(made, most) -> None:
    """However few moments there are, the highest is the peak of the timeline."""
    timeline = step(made)
    told = course(timeline, list(KINDS), most)
    assert len(told.held) <= most
    assert max(map(sum, told.held)) == sum(told.held[told.peak]) == timeline.peak().total
    assert told.operations == len(made) * 2
    assert [phase for _, phase, _ in told.phases] == ["forward", "backward"]
    assert all(0 <= first < len(told.held) for first, _, _ in told.phases)


def step(made: list[tuple[str, int]]) -> Timeline:
    """Return a step that holds ever more and lets it go again, and is taken down at the end."""
    ledger = AllocationLog()
    ledger.entries = [StorageEntry(size, "forward", 1, "", "", "", kind) for kind, size in made]
    ledger.entries.append(StorageEntry(7, "build", 0, "", "", "", "parameters"))
    ledger.changes = [AllocationChange(len(made), 7, "build", 0)]
    ledger.changes += [AllocationChange(n, size, "forward", 1) for n, (_, size) in enumerate(made)]
    ledger.changes += [
        AllocationChange(n, -size, "backward", 1) for n, (_, size) in enumerate(made)
    ]
    ledger.changes.append(AllocationChange(len(made), -7, "build", 1))
    return Timeline(ledger, exact)


def test_the_end_is_left_out() -> None:
    """That all is let go once the training is over is no part of a step."""
    told = course(step([("activations", 5)]), list(KINDS))
    assert told.held[-1] == (7, 0, 0)
