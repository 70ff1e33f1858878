"""One row of a log, and the number that a text of it means."""

import re
from math import inf, nan
from typing import NamedTuple

_DECIMALS = re.compile(r"[-+]?0*\.(0{2,})")
_MISSING = frozenset(("", "-", "--", "n/a", "na", "null", "none", "<na>", "true", "false"))
# As other languages and older C libraries write them.
_ODD = re.compile(r"([-+]?)(?:1\.#|-?)?(q?s?nan|ind|infinity|inf)(?:\([a-z0-9]*\))?\s*", re.I)
LONGEST = 64  # characters of a number


class Row(NamedTuple):
    """
    What one row says: its step, epoch and time where it has them, and its numbers by name.

    coarse: for zeros that may be rounded, half a unit of their last digit.
    total: the number of steps that the run is to have, where the row tells; 0 elsewhere.
    """

    values: dict[str, float]
    step: float | None = None
    epoch: float | None = None
    time: float = nan
    coarse: dict[str, float] | None = None
    total: int = 0


class Lost(NamedTuple):
    """An allocation that failed for want of memory: the line that says so, and its number."""

    text: str
    line: int


def figure(text: str) -> float | None:
    """Return the number that a text means, or None where it means none."""
    try:
        return float(text)
    except ValueError:
        pass
    text = text.strip()
    if len(text) > LONGEST or text.lower() in _MISSING:
        return None
    odd = _ODD.fullmatch(text)
    if odd is None:
        return None
    size = inf if "inf" in odd[2].lower() else nan
    return -size if odd[1] == "-" else size


def coarseness(text: str) -> float:
    """Return half a unit of the last digit of a zero that was written with several decimals."""
    found = _DECIMALS.fullmatch(text.strip())
    return 0.5 * 10.0 ** -min(300, len(found[1])) if found else 0.0
