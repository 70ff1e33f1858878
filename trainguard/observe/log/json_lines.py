"""Rows of JSON: one object a line, or a file that is one list of objects."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from math import nan
from pathlib import Path
from typing import Any

from trainguard.observe.log.roles import EPOCH, STEP, TIME, meaning_of
from trainguard.observe.log.row import Row, figure
from trainguard.observe.log.text import lines_of

_DEEPEST = 4
_COUNTERS = (STEP, EPOCH, TIME)
_NUMBERS = frozenset((float,))
read_value = json.JSONDecoder(parse_int=float).raw_decode  # as json.loads, in half the time
_make_row = partial(tuple.__new__, Row)  # as Row(...), likewise


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of a file with an object on each line; what is none is passed over."""
    given = tuple(sorted(chosen.items()))
    for line in lines_of(file):
        text = line.strip()
        if text[:1] == "{" and (read := parse(text)):
            yield row_of_object(read, given)


def row_of_object(read: dict[str, Any], chosen: tuple[tuple[str, str], ...]) -> Row:
    """Return the row that an object is, which may be used up."""
    return _row_of_plain(read, chosen) or row_of(read, dict(chosen))


def _row_of_plain(read: dict[str, Any], chosen: tuple[tuple[str, str], ...]) -> Row | None:
    """Return the row of an object that has floats alone, as most have; nothing of another."""
    if not _NUMBERS.issuperset(map(type, read.values())):
        return None
    step, epoch, time = _counters(tuple(read), chosen)
    return _make_row(
        (
            read,
            None if step is None else read.pop(step),
            None if epoch is None else read.pop(epoch),
            nan if time is None else read.pop(time),
            None,
            0,
        )
    )


def parse(text: str) -> dict[str, Any]:
    """Return the object that a text is; an empty one where it is none."""
    try:
        read, end = read_value(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) and not text[end:].strip() else {}


def row_of(read: Mapping[str, Any], chosen: dict[str, str]) -> Row:
    """Return the row that an object is."""
    values = dict(flatten(read))
    step, epoch, time = (
        values.pop(name) if name is not None else None
        for name in _counters(tuple(values), tuple(sorted(chosen.items())))
    )
    return Row(values, step, epoch, nan if time is None else time)


@lru_cache(maxsize=1024)
def _counters(
    names: tuple[str, ...], chosen: tuple[tuple[str, str], ...]
) -> tuple[str | None, ...]:
    """Return the names of the step, the epoch and the time among others; None where not there."""
    best: dict[str, tuple[int, str]] = {}
    for name in names:
        meaning = meaning_of(name)
        if meaning is not None and meaning.role in _COUNTERS:
            best[meaning.role] = min(best.get(meaning.role, (99, "")), (meaning.rank, name))
    found: dict[str, str | None] = {role: name for role, (_, name) in best.items()}
    found.update((role, name if name in names else None) for role, name in chosen)
    return tuple(found.get(role) for role in _COUNTERS)


def flatten(
    read: Mapping[str, Any], before: str = "", depth: int = 0
) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object, those of objects in it under `outer/inner`."""
    for key, value in read.items():
        name = f"{before}{key}"
        kind = type(value)
        if kind is float:
            yield name, value
        elif kind is str:
            if len(value) < 32 and (number := figure(value)) is not None:
                yield name, number
        elif kind is dict and depth < _DEEPEST:
            yield from flatten(value, f"{name}/", depth + 1)
