"""With which power of a size an amount grows: of the part that grows, whatever stays the same."""

from collections.abc import Sequence
from itertools import pairwise
from math import log2
from typing import Final

TOLERANCE: Final = 0.2  # n log n stays within it from about 64 on, and so does a small square term
SIZES: Final = 5  # doublings that are looked at: they show three powers
LASTING: Final = 3  # a maximum of several parts looks steep for a doubling or two, where one ends


def powers(amounts: Sequence[float]) -> list[float]:
    """
    Return the power at each size but the first two, from the amounts at sizes that double.

    What grows from one size to the next is compared with what grew before: of `c + a * n ** p`
    that is the power p, whatever the constant. Where nothing grew, the power is zero.
    """
    steps = [later - earlier for earlier, later in pairwise(amounts)]
    found = []
    for before, after in pairwise(steps):
        # From nothing to something says no power: it is where another part became the largest.
        found.append(log2(after / before) if before > 0 and after > 0 else 0.0)
    return found


def exceeds(amounts: Sequence[float], allowed: float) -> bool:
    """Say whether amounts at doubling sizes grow, lastingly, with more than the allowed power."""
    last = powers(amounts)[-LASTING:]
    return len(last) == LASTING and min(last) > allowed + TOLERANCE


def suspicious(amounts: Sequence[float], allowed: float) -> bool:
    """Say whether the last doubling grew too much, so that it takes more to know."""
    last = powers(amounts)[-1:]
    return bool(last) and last[0] > allowed + TOLERANCE


def fit_power(amounts: Sequence[float]) -> float:
    """Return the power over the last doublings: the slope of what grew, on logarithmic scales."""
    last = powers(amounts)[-LASTING:]
    return sum(last) / len(last) if last else 0.0
