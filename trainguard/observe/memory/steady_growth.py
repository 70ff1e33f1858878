"""Whether what stays alive stays of nearly every step, and what that comes to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

_WINDOWS = 3
_SHARE = 0.75  # of the steps in each window, of which something must be there
_RECENT = 2  # steps at the end, of which much is there in any training
_FIRST = 3  # the first step that counts: before, state and caches are made
_LEAST = 4  # steps that must count


@dataclass(frozen=True, slots=True)
class Span:
    """
    The steps of which nothing should be left: from `first` to `last`.

    settled: whether what is kept until the data have been passed through once, or until a pass
    ends, cannot be in it.
    """

    first: int
    last: int
    settled: bool

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return max(0, self.last - self.first + 1)

    def steady(self, kept: Collection[int]) -> bool:
        """Say whether something is kept of nearly every one of its steps, early and late ones."""
        if self.steps < _LEAST:
            return False
        edges = [self.first + self.steps * i // _WINDOWS for i in range(_WINDOWS + 1)]
        windows = [range(a, b) for a, b in pairwise(edges)]
        return all(sum(s in kept for s in window) >= _SHARE * len(window) for window in windows)


def span(steps: int, passes: Sequence[int], served: bool) -> Span:
    """
    Return the steps to look at after so many were made.

    passes: the steps after which a pass through the data ended. served: whether a loader serves
    them. A data set may fill a cache in its first pass, and what is collected over a pass is let
    go of at its end: only what lies between two ends tells.
    """
    last = steps - _RECENT
    if not served:
        return Span(_FIRST, last, True)
    if len(passes) > 1:
        between = Span(max(_FIRST, passes[0] + 1), min(last, passes[-1]), True)
        if between.steps >= _LEAST:
            return between
    return Span(_FIRST, last, False)
