"""How long a block of code may compute, however little of a processor it gets."""

from time import process_time

# On a loaded machine a process gets a share of a processor; one that gets less than this waits for
# something else, or for ever.
_STARVED = 0.05
_LONGEST = 20  # times the seconds of a block, by the clock, in which it may use them up
_LEAST = 0.01  # seconds that a block is never given: a clock is not read at the same instant twice


class Allowance:
    """The seconds of the processor that a block may use, and when it is next asked for them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._due = seconds
        self._began = process_time()
        self._latest = 0.0, 0.0

    def is_used_up(self, passed: float) -> bool:
        """Say whether a block, after so many seconds by the clock, is to be interrupted."""
        if passed < self._due:
            return False
        used, before = process_time() - self._began, self._latest
        self._latest = passed, used
        computes = used - before[1] >= _STARVED * (passed - before[0])
        left = min(self._seconds - used, _LONGEST * self._seconds - passed)
        if computes and left > _LEAST:
            self._due = passed + left
            return False
        return True
