"""Amounts of memory in words, both ways: "1.5 GiB" and 1610612736."""

import re

from trainguard.core.errors import DeclarationError, did_you_mean

_UNITS = {
    "B": 1,
    "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "TIB": 1024**4,
}  # fmt: skip
_NAMES = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
_SHOWN = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_AMOUNT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_PERCENT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")


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
    size = round(float(number) * _UNITS[unit.upper()])
    if size < least:
        raise DeclarationError(
            f"{option}={value!r} cannot be kept. Give an amount of at least {least} B."
        )
    return size


def share(option: str, value: str | float) -> float:
    """Return a share between zero and one: `"30 %"` or 0.3; raises DeclarationError."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    number = float(found[1]) / 100 if found is not None else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1:
        raise DeclarationError(f"{option}={value!r} is no share. Write '30 %' or 0.3.")
    return float(number)


def format_bytes(size: float) -> str:
    """Write an amount of memory with the unit that suits it: 1610612736 as "1.50 GiB"."""
    for unit, name in _SHOWN:
        if abs(size) >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size:,.0f} B"


def _near(unit: str) -> str:
    """Return the hint for a unit that does not exist: the one that begins alike."""
    alike = [name for name in _NAMES[1:] if name[0].lower() == unit[0].lower()]
    if alike:
        return f" Did you mean {alike[-1]!r}?"
    return did_you_mean(unit, _NAMES)
