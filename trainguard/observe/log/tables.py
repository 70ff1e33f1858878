"""Tables with a header: CSV and TSV of Lightning, of W&B's export, of TensorBoard's and DVCLive."""

import csv
import re
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path

from trainguard.observe.log.roles import EPOCH, STEP, TIME, meaning_of
from trainguard.observe.log.row import Row, coarseness, figure
from trainguard.observe.log.text import lines_of

_DELIMITERS = ",\t;|"
_TAG = re.compile(r"tag-(.+)\.csv$")
_PAIR = re.compile(r"[:=]\s*[-+.\d]")  # a name with its number: no header, but printed output
_SURE = 2  # rows of numbers under a name that says nothing
_NAMED = 64  # rows of which all columns are read
_COUNTERS = (STEP, EPOCH, TIME)


def names_of(header: str) -> tuple[str, list[str]]:
    """Return what stands between the columns of a header, and their names."""
    header = header.strip().lstrip("#")
    delimiter = max(_DELIMITERS, key=header.count)
    if not header.count(delimiter):
        delimiter = " " if " " in header.strip() else ","
    return delimiter, [cell.strip() for cell in next(_read(iter([header]), delimiter), [])]


def is_table(lines: Sequence[str]) -> bool:
    """Say whether some first lines of a file are a header of names, and rows under it."""
    if not lines or lines[0].lstrip()[:1] in ("{", "["):
        return False
    delimiter, names = names_of(lines[0])
    under = [*_read(iter(lines[1:]), delimiter)]
    if not all(figure(name) is None and len(name) < 200 for name in names if name):
        return False
    meant = [at for at, name in enumerate(names) if meaning_of(name) and not _PAIR.search(name)]
    if not meant or len(names) == 1 or delimiter == " ":  # its numbers alone tell that it is one
        asked = meant or range(len(names) * (delimiter != " "))
        whole = len(under) >= _SURE and all(len(cells) == len(names) for cells in under)
        return whole and any(all(figure(c[at]) is not None for c in under) for at in asked)
    told = [c for c in under if any(_is_figure(c[at]) for at in meant if at < len(c))]
    return 2 * len(told) >= len(under)


def _is_figure(text: str) -> bool:
    """Say whether a cell is a number, or empty as where there is none."""
    return not text or figure(text) is not None


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of a table; `chosen` has the names of counters that were given."""
    lines = lines_of(file, whole=True)
    header = next((line for line in lines if line.strip()), "")
    delimiter, names = names_of(header)
    names = _name_columns(file, names)
    places = _places(names, chosen)
    kept = [(i, name) for i, name in enumerate(names) if name and i not in places.values()]
    step, epoch, time = (places.get(counter, -1) for counter in _COUNTERS)
    meant = [(i, name) for i, name in kept if name in chosen.values() or meaning_of(name)]
    width = len(names)
    for number, cells in enumerate(_read(lines, delimiter)):
        if number == _NAMED:  # what means nothing is named by now, and need not be read
            kept = meant
        if len(cells) < width:
            cells += [""] * (width - len(cells))
        coarse = None
        try:
            values = {name: float(cells[at]) for at, name in kept}
        except ValueError:
            values = {n: v for at, n in kept if (v := figure(cells[at])) is not None}
        if 0.0 in values.values():
            zeros = {n: coarseness(cells[at]) for at, n in kept if values.get(n) == 0}
            coarse = {name: half for name, half in zeros.items() if half} or None
        if values:
            at_step = figure(cells[step]) if step >= 0 else None
            at_epoch = figure(cells[epoch]) if epoch >= 0 else None
            when = figure(cells[time]) if time >= 0 else None
            yield Row(values, at_step, at_epoch, nan if when is None else when, coarse)


def _read(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each line that can be read."""
    if delimiter == " ":
        yield from (line.split() for line in lines)
        return
    reader = csv.reader(
        map(_with_points if delimiter == ";" else _close, lines), delimiter=delimiter
    )
    while True:
        try:
            yield from reader
        except csv.Error:  # a null byte, or a cell of megabytes
            continue
        return


def _close(line: str) -> str:
    """Return a line without quotes where one is not closed, which would take all lines after it."""
    return line.replace('"', "") if '"' in line and line.count('"') % 2 else line


def _with_points(line: str) -> str:
    """Return a line with decimal points: where commas are decimal, semicolons part the cells."""
    return _close(line).replace(",", ".")


def _name_columns(file: Path, names: list[str]) -> list[str]:
    """Return the names of the columns; one that is told by the name of the file has that one."""
    tag = _TAG.search(file.name)
    if tag is not None:
        return [tag[1] if name.lower() == "value" else name for name in names]
    folder = file.parent.name
    if "plots" in file.parts and folder != "metrics":  # DVCLive: plots/metrics/train/loss.tsv
        return [f"{folder}/{name}" if name == file.stem else name for name in names]
    return names


def _places(names: Sequence[str], chosen: dict[str, str]) -> dict[str, int]:
    """Return where the counters stand."""
    places: dict[str, tuple[int, int]] = {}
    for index, name in enumerate(names):
        meaning = meaning_of(name)
        if meaning is None or meaning.role not in _COUNTERS or meaning.role in chosen:
            continue
        places[meaning.role] = min(places.get(meaning.role, (99, 0)), (meaning.rank, index))
    found = {role: index for role, (_, index) in places.items()}
    given = {role: names.index(name) for role, name in chosen.items() if name in names}
    return {**found, **{role: at for role, at in given.items() if role in _COUNTERS}}
