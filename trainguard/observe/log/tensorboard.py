"""
Scalars of a TensorBoard event file, with the standard library alone.

A record is a length, a checksum of it, an Event of protocol buffers, and a checksum of that. Of
an Event the time (1), the step (2) and the summary (5) count; of a summary its values, each with a
tag (1) and a number (2) or a tensor (8). A file that a kill cut off is read up to the last whole
record.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainguard.observe.log.reading import open_log
from trainguard.observe.log.row import Row

_HEAD = struct.Struct("<QI")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_LONGEST = 1 << 28  # bytes of a record: pictures are smaller
_SHORTEST = 24  # bytes of an event with a scalar
_SIMPLE, _TENSOR, _CONTENT, _FLOATS, _DOUBLES, _TYPE = 2, 8, 4, 5, 6, 1
_LIMIT = 4096  # names that are remembered by their bytes


def rows(file: Path) -> Iterator[Row]:
    """Yield the rows of an event file: the scalars of one step that stand together."""
    step, when, values = -1, math.nan, dict[str, float]()
    for time, at, tag, value in scalars(file):
        if at != step or tag in values:
            if values:
                yield Row(values, step, None, when)
            step, when, values = at, time, {}
        values[tag] = value
    if values:
        yield Row(values, step, None, when)


def is_event_file(start: bytes) -> bool:
    """Say whether a file begins with a record that says it is one of TensorBoard."""
    return len(start) > _HEAD.size and b"brain.Event:" in start[_HEAD.size : _HEAD.size + 64]


def scalars(file: Path) -> Iterator[tuple[float, int, str, float]]:
    """
    Yield (time, step, tag, value) of each scalar, up to the end of the last whole record.

    What stands between the step and the number of a plain scalar is the same for all of a tag: it
    is remembered by these bytes, and read field by field only once.
    """
    known: dict[bytes, str] = {}
    size_of, double, single = _HEAD.unpack, _DOUBLE.unpack_from, _FLOAT.unpack_from
    with open_log(file) as opened:
        read = opened.read
        while len(head := read(_HEAD.size)) == _HEAD.size:
            size = size_of(head)[0]
            record = read(size + 4) if size <= _LONGEST else b""
            if len(record) < size + 4:
                return  # the run was killed
            at = _end_of_step(record) if size >= _SHORTEST else 0
            tag = known.get(record[at : size - 4])
            if tag is not None:
                step = record[10] if at == 11 else _varint(record, 10)[0] if at > 9 else 0
                yield double(record, 1)[0], step, tag, single(record, size - 4)[0]
            else:
                yield from _read_event(record[:-4], at, known)


def _end_of_step(record: bytes) -> int:
    """Return where the step of an event ends that has the time and the step first; 0 elsewhere."""
    if record[0] != 0x09:
        return 0
    if record[9] != 0x10:
        return 9
    at = 10
    while record[at] > 127 and at < 20:
        at += 1
    return at + 1


def _read_event(
    record: bytes, at: int, known: dict[bytes, str]
) -> Iterator[tuple[float, int, str, float]]:
    """Yield the scalars of one event, field by field; nothing of one that is damaged."""
    try:
        time, step, summaries = _read_slowly(record)
        found = [value for summary in summaries for value in _values(summary)]
    except (IndexError, ValueError, struct.error):
        return
    if at and len(found) == 1 and record[-5] == 0x15 and len(known) < _LIMIT:
        known[record[at:-4]] = found[0][0]
    for value in found:
        yield time, step, *value


def _read_slowly(record: bytes) -> tuple[float, int, list[bytes]]:
    """Return the time, the step and the summaries of an event, field by field."""
    time, step, summaries = math.nan, 0, []
    for field, value in _fields(record):
        if field == 1:
            time = _DOUBLE.unpack(value)[0]
        elif field == 2:
            step = value
        elif field == 5:
            summaries.append(value)
    return time, step, summaries


def _varint(text: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends."""
    number = shift = 0
    while True:
        byte = text[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("no number is so long")


def _fields(text: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message."""
    at = 0
    while at < len(text):
        key, at = _varint(text, at)
        kind, size = key & 7, 0
        if kind == 0:
            value, at = _varint(text, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(text, at)
        else:
            size = {1: 8, 5: 4}.get(kind, len(text))
        if at + size > len(text):
            raise ValueError("a field is longer than its message")
        yield key >> 3, text[at : at + size]
        at += size


def _values(summary: bytes) -> Iterator[tuple[str, float]]:
    """Yield the tag and the number of each scalar of a summary."""
    for field, value in _fields(summary):
        if field == 1:
            parts = dict(_fields(value))
            number = _number(parts)
            if number is not None:
                yield parts.get(1, b"").decode("utf-8", "replace"), number


def _number(parts: dict[int, Any]) -> float | None:
    """Return the number of a value: plain, or a tensor of one element."""
    if isinstance(parts.get(_SIMPLE), bytes):
        return float(_FLOAT.unpack(parts[_SIMPLE])[0])
    if not isinstance(parts.get(_TENSOR), bytes):
        return None
    tensor = dict(_fields(parts[_TENSOR]))
    form = {1: _FLOAT, 2: _DOUBLE}.get(tensor.get(_TYPE, 0))
    content = tensor.get(_CONTENT) or tensor.get(_FLOATS) or tensor.get(_DOUBLES)
    if form is None or not isinstance(content, bytes) or len(content) != form.size:
        return None
    return float(form.unpack(content)[0])
