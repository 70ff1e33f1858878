"""What a training printed: `key=value`, `key: value`, `| loss 2.31 |`, progress bars."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import NamedTuple

from trainguard.core.log_line import numbers_in
from trainguard.observe.log.json_lines import row_of
from trainguard.observe.log.row import Lost, Row, figure
from trainguard.observe.log.text import lines_of

# A bar of tqdm: ` 45%|####5     | 450/1000 [00:10<00:12, 45.0it/s, loss=0.5]`.
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[[^\]]*")
_OF = re.compile(
    r"\b(?P<word>step|iter|iteration|batch|epoch|update)s?\s*[:=\[(#]?\s*"
    r"(?P<at>\d+)(?:\s*(?:/|of)\s*(?P<of>\d+))?(?![\w.]|\s*%)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\s*[:=\[(#]?\s*(\d+)(?![\d.]|\s*%)", re.IGNORECASE)
_ODD = re.compile(  # spellings of no number that are no number of Python
    r"([A-Za-z_][\w/.-]*)['\"]?\s*[:=]\s*['\"]?"
    r"([-+]?(?:1\.#)?(?:nan|inf(?:inity)?|ind|qnan)\b(?:\([a-z]*\))?)",
    re.IGNORECASE,
)
_WORTH = ("loss", "nll", "lr", "learning", "norm", "acc")  # in lower case
_FIGURE = re.compile(r"((?<![\w.])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
# Numbers as they are written; what is none of these is found when it is made a number.
# 1,234, and neither 0,5 nor the 30,116 seconds of a time.
_THOUSANDS = re.compile(r"(?<![\w.,+-])(?<!\d:)\d{1,3}(?:,\d{3})+(?![\d,])")
_KINDS = {"1": r"[-+]?\d+", ".": r"[-+.\deE]+"}
_MOST_FORMS = 4096
_make_row = partial(tuple.__new__, Row)  # as Row(...), in half the time: there are millions
_COARSE = 0.05  # of a zero: one that is written as 0.0 is meant
_MEMORY = re.compile(r"out of memory", re.IGNORECASE)


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row | Lost]:
    """Yield a row for each line that says a number by name, and each allocation that failed."""
    wanted = tuple(chosen.values())
    forms = _Forms(chosen)
    epoch: float | None = None
    quoted = False
    for number, line in enumerate(lines_of(file), 1):
        form = forms.last
        if form is not None and (alike := form.read(line, epoch)) is not None:
            epoch = alike.epoch
            yield alike
            continue
        if ("emory" in line or "MEMORY" in line) and _MEMORY.search(line):
            yield Lost(line, number)
            continue
        before, quoted = quoted, line.startswith('  File "')
        if before:  # the source of a call, in a traceback
            continue
        if "," in line:
            line = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), line)
        small = line.lower()  # words in it are looked for ten times as fast as by a pattern
        if any(word in small for word in _WORTH) or any(name in line for name in wanted):
            row = forms.read(line, epoch)
            epoch = row.epoch
            if row.values:
                yield row
        elif "epoch" in small and (heading := _EPOCH.search(line)):
            epoch = float(heading[1])


class _Forms:
    """
    Lines of one form, which differ by their numbers alone, are read alike.

    The first lines of a form are read word by word. Where each number of such a line is told by
    its value alone, its place is learned; the places that two lines agree on are read from then on.
    """

    def __init__(self, chosen: dict[str, str]) -> None:
        self._chosen = chosen
        self._places: dict[tuple[str, ...], _Places | None] = {}
        self._known: dict[tuple[str, ...], _Form] = {}
        self.last: _Form | None = None

    def read(self, line: str, epoch: float | None) -> Row:
        """Return what a line says that is not like the one before."""
        parts = _FIGURE.split(line)
        figures = parts[1::2]
        key = (*parts[::2], "".join([_kind(figure) for figure in figures]))
        form = self._known.get(key)
        if form is not None:
            self.last = form
            return form.read(line, epoch) or _row_of(line, epoch, self._chosen)
        row = _row_of(line, epoch, self._chosen)
        if len(self._places) < _MOST_FORMS:
            before, learned = self._places.get(key), _learn(row, figures)
            self._places[key] = learned
            if learned is not None and learned == before:
                self.last = self._known[key] = _Form(learned, parts)
        return row


class _Places(NamedTuple):
    """Where among the numbers of a line those that are read stand; -1 where there is none."""

    names: tuple[tuple[str, int], ...]
    step: int
    epoch: int
    total: int
    time: int


class _Form:
    """What lines look like that are alike, with a group for each number that is read."""

    def __init__(self, places: _Places, parts: Sequence[str]) -> None:
        at = {at for _, at in places.names} | ({*places[1:]} - {-1})
        order = {place: group for group, place in enumerate(sorted(at))}
        self._names = [(name, order[place]) for name, place in places.names]
        self._step, self._epoch, self._total, self._time = (order.get(p, -1) for p in places[1:])
        told = [
            (f"({_KINDS[_kind(part)]})" if n // 2 in at else _KINDS[_kind(part)])
            if n % 2
            else re.escape(part)
            for n, part in enumerate(parts)
        ]
        self._match = re.compile("".join(told)).fullmatch

    def read(self, line: str, epoch: float | None) -> Row | None:
        """Return the row of a line; nothing where it is not alike, or has a zero."""
        found = self._match(line)
        if found is None:
            return None
        try:
            told = [*map(float, found.groups())]
        except ValueError:  # "1-2" where one number stood
            return None
        values = {name: told[at] for name, at in self._names}
        if 0.0 in values.values():  # how a zero was rounded is read from its text
            return None
        step = told[self._step] if self._step >= 0 else None
        epoch = told[self._epoch] if self._epoch >= 0 else epoch
        time = told[self._time] if self._time >= 0 else nan
        total = int(told[self._total]) if self._total >= 0 else 0
        return Row(values, step, epoch, time, None, total)


def _kind(figure: str) -> str:
    """Return whether a number is whole as it is written."""
    return "." if "." in figure or "e" in figure.lower() else "1"


def _learn(row: Row, figures: list[str]) -> _Places | None:
    """Return where the numbers of a row stand in its line, if that is sure."""
    numbers = [float(figure) for figure in figures]
    time = row.time if row.time == row.time else None
    counters = [n for n in (row.step, row.total or None, time) if n is not None]
    asked = [*row.values.values(), *counters]
    if row.coarse or any(numbers.count(value) != 1 for value in asked) or not row.values:
        return None
    epochs = [at for at, number in enumerate(numbers) if number == row.epoch]
    if len(epochs) > 1:
        return None
    return _Places(
        tuple((name, numbers.index(value)) for name, value in row.values.items()),
        -1 if row.step is None else numbers.index(row.step),
        epochs[0] if epochs else -1,
        numbers.index(row.total) if row.total else -1,
        -1 if time is None else numbers.index(time),
    )


def _row_of(line: str, epoch: float | None, chosen: dict[str, str]) -> Row:
    """Return what one line says, word by word."""
    heading = _EPOCH.search(line)
    epoch = float(heading[1]) if heading else epoch
    values, coarse = dict[str, float](), dict[str, float]()
    for said in numbers_in(line[:2000]):
        name = said.name.strip()
        values[name] = said.value
        if said.value == 0 and 0 < said.rounding < _COARSE:
            coarse[name] = said.rounding
    for odd in _ODD.finditer(line) if "n" in line.lower() else ():
        value = figure(odd[2])
        if value is not None:
            values[odd[1]] = value
    row = row_of(values, chosen)
    step, total = row.step, 0
    bar = _BAR.search(line)
    counted = next((f for f in _OF.finditer(line) if f["word"].lower() != "epoch"), None)
    if step is None and counted is not None:
        step, total = float(counted["at"]), int(counted["of"] or 0)
    elif step is None and bar is not None:
        step, total = float(bar[1]), int(bar[2])
    return row._replace(
        step=step, epoch=row.epoch if row.epoch is not None else epoch, coarse=coarse, total=total
    )
