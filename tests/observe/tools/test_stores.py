"""Variables that are stored in, and whether anything reads what they hold."""

from collections.abc import Callable

import pytest

from trainguard.observe.tools.stores import stores_unread


def overwritten(x):
    """Store twice, and read once."""
    y = x + 1
    y = x + 2
    return y, x


def read_between(x):
    """Read the first value before the second one comes."""
    y = x + 1
    y = y + 2
    return y, x


def chosen(x):
    """Keep the first value now and then."""
    y = x + 1
    if x:
        y = x + 2
    return y


def looped(x):
    """Read what the turn before has stored."""
    y = 0
    for _ in range(3):
        x += y
        y = x + 2
    return x


def inner(x):
    """Let a function inside read it."""
    y = x + 1
    return lambda: y


@pytest.mark.parametrize(
    ("function", "line", "expected"),
    [
        (overwritten, 2, True),
        (overwritten, 3, False),
        (read_between, 2, False),
        (chosen, 2, False),
        (looped, 5, False),
        (inner, 2, False),
    ],
)
def test_stores_that_nothing_reads(function: Callable, line: int, expected: bool) -> None:
    """Certain alone: what happens in a loop, a branch or another function may read it."""
    place = function.__code__.co_firstlineno + line
    assert stores_unread(function.__code__, "y", range(place, place + 1)) is expected
