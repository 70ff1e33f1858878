"""Find the largest size at which a step stays within a budget, by predictions alone."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainguard.core.errors import SubjectError
from trainguard.events.memory import Fit

MOST = 1 << 30  # no dimension is larger
_FLAT = 1024  # so much larger, and not one byte more: the size plays no part, blocks or not
_TURNS = 3  # each third guess is the middle: memory may be no straight line


@dataclass
class FitSearch:
    """
    The search for the largest size at which a step fits.

    measure: returns the bytes that a size takes; raises SubjectError where the step does not run.
    grain: the step between sizes. It grows where a size does not run that lies below one that does:
    a model with pooling, say, runs at every 16th length only.
    """

    measure: Callable[[int], int]
    limit: int
    peaks: dict[int, int] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    grain: int = 1

    def largest(self, name: str, begin: int) -> Fit:
        """Search upwards from a size, or downwards where that does not fit."""
        low, high = self._bracket(begin)
        turn = 0
        while high and high - low > self.grain:
            turn += 1
            size = self._guess(low, high) if turn % _TURNS else (low + high) // 2
            size = low + max(1, (size - low) // self.grain) * self.grain
            if self._fits(size):
                low = size
            elif size in self.peaks or not self._coarser(begin, size):
                high = size
        return Fit(
            name=name,
            most=low,
            peak=self.peaks.get(low, 0),
            next=high,
            above=self.peaks.get(high, 0),
            why=self.faults.get(high, "") if high else self._open(begin, low),
            grain=self.grain,
            tried=len(self.peaks) + len(self.faults),
        )

    def _bracket(self, begin: int) -> tuple[int, int]:
        """Return a size that fits and one that does not; 0 where there is none."""
        size = begin
        if not self._fits(size):
            while size > 1 and not self._fits(size // 2) and size // 2 in self.peaks:
                size //= 2
            return (size // 2 if self._fits(size // 2) else 0), size
        while size < MOST and self._fits(size * 2):
            size *= 2
            if size - begin >= _FLAT and self.peaks[size] == self.peaks[begin]:
                return size, 0
        return (size, size * 2) if size < MOST else (size, 0)

    def _guess(self, low: int, high: int) -> int:
        """Return the size between two at which the budget is used up, were memory linear."""
        if high not in self.peaks or low not in self.peaks:
            return (low + high) // 2
        slope = (self.peaks[high] - self.peaks[low]) / (high - low)
        guess = low + int((self.limit - self.peaks[low]) / slope)
        return min(max(guess, low + 1), high - 1)

    def _coarser(self, begin: int, size: int) -> bool:
        """Take wider steps, where a size does not run and a larger one does; say whether it did."""
        if max(self.peaks) < size or self.grain == begin:
            return False
        twice = self.grain * 2
        self.grain = begin if begin % twice else twice
        return True

    def _open(self, begin: int, size: int) -> str:
        """Say why nothing was found that does not fit."""
        flat = self.peaks.get(size) == self.peaks.get(begin)
        return "memory does not grow with it" if flat else "nothing larger was tried"

    def _fits(self, size: int) -> bool:
        """Say whether a size fits, and remember what it takes."""
        if not size or size in self.faults:
            return not size
        if size not in self.peaks:
            try:
                self.peaks[size] = self.measure(size)
            except SubjectError as fault:
                self.faults[size] = fault.sentence
                return False
        return self.peaks[size] <= self.limit
