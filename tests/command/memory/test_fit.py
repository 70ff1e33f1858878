"""The largest size that fits: found whatever memory does with the size, in few predictions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainguard.command.memory.fit import FitSearch
from trainguard.core.errors import SubjectError


def found(measure, limit: int, begin: int):
    """Search from a size whose peak is known."""
    return FitSearch(measure, limit, {begin: measure(begin)}).largest("T", begin)


@given(
    st.integers(0, 10**6), st.integers(1, 10**4), st.integers(0, 50), st.integers(1, 500),
    st.integers(1, 2000), st.sampled_from([1, 512]),
)  # fmt: skip
def test_it_is_the_largest(constant, slope, square, begin, most, block) -> None:
    """It fits, and one more does not, from below as from above, with blocks and squares."""

    def measure(size: int) -> int:
        """Return an amount that grows with the size, in whole blocks."""
        return -(-(constant + slope * size + square * size * size) // block) * block

    limit = measure(most)
    fit = found(measure, limit, begin)
    assert measure(fit.most) <= limit < measure(fit.most + 1)
    assert fit.most >= most
    assert (fit.peak, fit.above) == (measure(fit.most), measure(fit.most + 1))


@pytest.mark.parametrize("power", [1, 2, 3])
def test_few_sizes_are_tried(power) -> None:
    """A straight line is hit at once, and a curve takes no more than twice what halving takes."""
    fit = found(lambda size: 10**9 + 977 * size**power, 10**12, 8)
    assert 977 * fit.most**power <= 10**12 - 10**9 < 977 * (fit.most + 1) ** power
    assert fit.tried <= (32 if power == 1 else 48)


def test_nothing_fits() -> None:
    """Where not even one fits, that is the answer."""
    fit = found(lambda size: 100 + size, 50, 8)
    assert (fit.most, fit.peak, fit.next, fit.above) == (0, 0, 1, 101)


def test_memory_that_does_not_grow() -> None:
    """A size that plays no part is not looked for up to the end of the world."""
    fit = found(lambda size: 100, 150, 8)
    assert (fit.why, fit.tried) == ("memory does not grow with it", 9)


def test_a_step_that_does_not_run_at_a_size() -> None:
    """The largest size that runs is found, and why no larger one does."""

    def measure(size: int) -> int:
        """Refuse what is longer than its table."""
        if size > 77:
            raise SubjectError("it raised IndexError")
        return size

    fit = found(measure, 1000, 4)
    assert (fit.most, fit.peak, fit.above, fit.why) == (77, 77, 0, "it raised IndexError")


@pytest.mark.parametrize("grain", [2, 16, 64])
@pytest.mark.parametrize("begin", [64, 640, 6400])
def test_a_step_that_runs_at_multiples_only(grain, begin) -> None:
    """What does not run below a size that does is stepped over, upwards as downwards."""

    def measure(size: int) -> int:
        """Refuse what cannot be pooled."""
        if size % grain:
            raise SubjectError("it raised RuntimeError: shape is invalid")
        return 5000 + size

    fit = found(measure, 5000 + 1001, begin)
    assert fit.most == 1001 // grain * grain
    assert (fit.grain, fit.next, fit.above) == (grain, fit.most + grain, 5000 + fit.most + grain)
