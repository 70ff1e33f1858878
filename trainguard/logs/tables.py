"""Tables with a header: CSV and TSV of Lightning, of W&B's export, of TensorBoard's and DVCLive."""

import csv
import re
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path

from trainguard.logs.roles import EPOCH, STEP, TIME, meaning_of
from trainguard.logs.row import Row, coarseness, figure
from trainguard.logs.text import lines_of

_DELIMITERS = ",\t;|"
_TAG = re.compile(r"tag-(.+)\.csv$")
_PAIR = re.compile(r"[:=]\s*[-+.\d]")  # a name with its number: no header, but printed output
_SURE = 2  # rows of numbers under a name that says nothing
_NAMED = 64  # rows of which all columns are read
_COUNTERS = (STEP, EPOCH, TIME)


def delimiter_of(header: str) -> str:
    """Return what stands between the columns of a header; nothing where it is none."""
    best = max(_DELIMITERS, key=header.count)
    return best if header.count(best) else ""


def is_table(lines: Sequence[str]) -> bool:
    """Say whether some first lines of a file are a header of names, and rows under it."""
    if not lines or lines[0].lstrip()[:1] in ("{", "["):
        return False
    delimiter = delimiter_of(lines[0]) or ","
    names = _cells(lines[0], delimiter)
    if not all(figure(name) is None and len(name) < 200 for name in names if name):
        return False
    under = [cells for line in lines[1:] if len(cells := _cells(line, delimiter)) == len(names)]
    meant = [at for at, name in enumerate(names) if meaning_of(name) and not _PAIR.search(name)]
    if not meant or len(names) == 1:  # one of names that say nothing, or none but for its numbers
        figures = [at for at in range(len(names)) if all(figure(c[at]) is not None for c in under)]
        return len(under) == len(lines) - 1 >= _SURE and bool(figures)
    told = [cells for cells in under if any(_is_figure(cells[at]) for at in meant)]
    return 2 * len(told) >= len(lines) - 1


def _is_figure(text: str) -> bool:
    """Say whether a cell is a number, or empty as where there is none."""
    return not text or figure(text) is not None


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of a table; `chosen` has the names of counters that were given."""
    lines = lines_of(file, whole=True)
    header = next((line for line in lines if line.strip()), "")
    delimiter = delimiter_of(header) or ","
    names = _name_columns(file, _cells(header, delimiter))
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


def _cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]


def _read(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each line that can be read."""
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            yield from reader
        except csv.Error:  # a null byte, or a cell without an end
            continue
        return


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
