"""How one measure differs between two trainings, and whether that is worse than was stated."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import Final

from trainguard.core.errors import DeclarationError

MEASURES: Final = ("loss", "evaluated", "time", "memory")
UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "loss": {"": 1.0},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "memory": {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}
# Student's, 99.5 %; beyond, an expansion is exact enough.
_QUANTILES: Final = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707}


@dataclass(frozen=True, slots=True)
class Margin:
    """What B may be worse by: in the unit of the measure, or as a share of A."""

    value: float
    share: bool
    text: str

    def limit_for(self, of: float) -> float:
        """Return the margin in the unit of the measure, where A measures `of`."""
        return self.value * abs(of) if self.share else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    How one measure differs between A and B; less is better for all of them.

    a, b: what is typical of each side. by: the mean difference of the pairs, low and high the ends
    of its 99 % interval. pairs: how many, and of what ("runs", "steps"). Outcome: "" where no
    margin was stated, "within" or "worse" with the whole interval, or else "open".
    """

    measure: str
    a: float
    b: float
    by: float
    low: float
    high: float
    pairs: int
    paired: str = "runs"
    margin: Margin | None = None
    outcome: str = ""

    @property
    def share(self) -> float:
        """The difference as a share of A; nan where A is zero."""
        return self.by / abs(self.a) if self.a else math.nan


def margin(measure: str, text: str) -> Margin:
    """Read a margin such as `2%`, `0.05`, `3 ms` or `20 MiB`; raises DeclarationError."""
    units = {"%": 0.01, **UNITS[measure]}
    found = re.fullmatch(r"\s*(\d*\.?\d+(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*", text)
    if found is None or found[2] not in units:
        known = ", ".join(f"'5{unit}'" for unit in units)
        raise DeclarationError(
            f"--{measure}-margin {text!r} is no margin. Give what B may be worse by: {known}."
        )
    return Margin(float(found[1]) * units[found[2]], found[2] == "%", text.strip())


def apply_margin(change: Change, given: Margin) -> Change:
    """Return a change with what becomes of it under a margin."""
    allowed = given.limit_for(change.a)
    if not math.isfinite(change.b) or change.low > allowed:
        outcome = "worse"
    else:
        outcome = "within" if change.high <= allowed else "open"
    return replace(change, margin=given, outcome=outcome)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 99 % interval of the mean of some differences, after Student."""
    middle = mean(differences)
    if len(differences) < 2:
        return middle, middle
    try:
        spread = stdev(differences)
    except OverflowError:
        spread = math.inf
    half = quantile(len(differences) - 1) * spread / math.sqrt(len(differences))
    return middle - half, middle + half


def mean(values: Iterable[float]) -> float:
    """Return the mean of some values; infinity where their sum is too large for a number."""
    try:
        return fmean(values)
    except OverflowError:
        return math.inf


def quantile(freedom: int) -> float:
    """Return the 99.5 % quantile of Student's distribution."""
    z = NormalDist().inv_cdf(0.995)
    expanded = z + (z**3 + z) / (4 * freedom)
    expanded += (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    expanded += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return _QUANTILES.get(freedom, expanded)
