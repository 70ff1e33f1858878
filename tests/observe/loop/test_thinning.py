"""What a long run keeps of its events."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from trainguard.events.loop import Step
from trainguard.observe.loop import thinning
from trainguard.observe.loop.thinning import Thinned, distance_of


def filled(count: int, odd: tuple[int, ...] = ()) -> list[Step]:
    """Return what is kept of so many steps, of which some are unlike the others."""
    events = Thinned(lambda step: step.culprit)
    for index in range(count):
        events.add(Step(step=index, culprit=f"{index}" if index in odd else ""))
    return list(events)


def test_a_short_run_is_kept_whole() -> None:
    """Nothing is dropped until there is much."""
    assert [step.step for step in filled(2000)] == list(range(2000))


def test_a_long_run_is_bounded_and_even() -> None:
    """A million steps leave some thousand, in order, evenly spread."""
    steps = filled(100_000)
    assert len(steps) <= 64 + thinning.FULL + 1
    indices = [step.step for step in steps]
    assert indices == sorted(indices)
    gaps = {b - a for a, b in pairwise(indices[100:])}
    assert len(gaps) == 1


def test_what_is_unlike_the_rest_is_kept() -> None:
    """One odd step in a long run survives, wherever it was."""
    steps = filled(50_000, odd=(33_333,))
    assert [step.step for step in steps if step.culprit] == [33_333]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000))
def test_the_spans_add_up(count: int) -> None:
    """What is kept stands for about as many steps as there were."""
    spans = sum(step.span for step in filled(count))
    assert abs(spans - count) <= max(64, 0.05 * count)


def test_looks_at_calls_fall_into_no_period() -> None:
    """Whatever a training does every so many calls is looked at, about one time in four."""
    counts = range(1, 20_001)
    assert all(distance_of(count) == 1 for count in counts[:64])
    assert abs(sum(map(distance_of, counts)) / len(counts) - 1) < 0.01
    for period in range(2, 65):
        looks = [sum(distance_of(c) > 0 for c in counts[64 + i :: period]) for i in range(period)]
        assert min(looks) > 0.15 * len(counts) / period
