"""Amounts of memory in words, both ways; and the power with which they grow."""

import re
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, log2
from typing import Final

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.measure import Measure

_UNITS = {
    "B": 1,
    "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "TIB": 1024**4,
}  # fmt: skip
_NAMES = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
_SHOWN = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_AMOUNT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_PERCENT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")
TOLERANCE: Final = 0.2  # n log n stays within it from about 64 on, and so does a small square term
SIZES: Final = 5  # doublings that are looked at: they show three powers
LASTING: Final = 3  # a maximum of several parts looks steep for a doubling or two, where one ends


def parse_bytes(option: str, value: str | int, least: int = 1) -> int:
    """
    Return an amount of memory in bytes: `"1.5 GiB"`, `"300MB"`, or a number of bytes.

    Raises DeclarationError, naming the option, for what is no amount or is below `least` bytes.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DeclarationError(f"{option}={value!r} is no amount of memory. Write '1.5 GiB'.")
    found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and found is None:
        raise DeclarationError(f"{option}={value!r} is no amount of memory. Write '1.5 GiB'.")
    number, unit = (found[1], found[2] or "B") if found is not None else (str(value), "B")
    if unit.upper() not in _UNITS:
        raise DeclarationError(f"{option}={value!r} has no unit of memory.{_near(unit)}")
    size = float(number) * _UNITS[unit.upper()]
    if not isfinite(size) or round(size) < least:
        raise DeclarationError(
            f"{option}={value!r} cannot be kept. Give an amount of at least {least} B."
        )
    return round(size)


def share(option: str, value: str | float) -> float:
    """Return a share between zero and one: `"30 %"` or 0.3; raises DeclarationError."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    number = float(found[1]) / 100 if found is not None else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1:
        raise DeclarationError(f"{option}={value!r} is no share. Write '30 %' or 0.3.")
    return float(number)


def format_bytes(size: float) -> Measure:
    """Write an amount of memory with the unit that suits it: 1610612736 as "1.50 GiB"."""
    for unit, name in _SHOWN:
        if abs(size) >= unit:
            return Measure(f"{size / unit:,.2f} {name}", size, "B")
    return Measure(f"{size:,.0f} B", size, "B")


def _near(unit: str) -> str:
    """Return the hint for a unit that does not exist: the one that begins alike."""
    alike = [name for name in _NAMES[1:] if name[0].lower() == unit[0].lower()]
    if alike:
        return f" Did you mean {alike[-1]!r}?"
    return did_you_mean(unit, _NAMES)


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
