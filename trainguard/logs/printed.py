"""What a training printed: `key=value`, `key: value`, `| loss 2.31 |`, progress bars."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainguard.core.log_line import numbers_in
from trainguard.logs.json_lines import row_of
from trainguard.logs.row import Lost, Row, figure
from trainguard.logs.text import lines_of

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
_WORTH = re.compile(r"loss|nll|lr|learning|norm|acc", re.IGNORECASE)
_FIGURE = re.compile(r"((?<![\w.])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_MOST_FORMS = 4096
_COARSE = 0.05  # of a zero: one that is written as 0.0 is meant
_MEMORY = re.compile(r"out of memory", re.IGNORECASE)


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row | Lost]:
    """Yield a row for each line that says a number by name, and each allocation that failed."""
    wanted = tuple(chosen.values())
    forms = _Forms(chosen)
    epoch: float | None = None
    for number, line in enumerate(lines_of(file), 1):
        if ("emory" in line or "MEMORY" in line) and _MEMORY.search(line):
            yield Lost(line, number)
        elif _WORTH.search(line) or any(name in line for name in wanted):
            row = forms.read(line, epoch)
            epoch = row.epoch
            if row.values:
                yield row
        elif heading := _EPOCH.search(line):
            epoch = float(heading[1])


class _Forms:
    """
    Lines of one form, which differ by their numbers alone, are read alike.

    The first lines of a form are read word by word. Where each number of such a line is told by
    its value alone, its place is learned; the places that two lines agree on are read from then on.
    """

    def __init__(self, chosen: dict[str, str]) -> None:
        self._chosen = chosen
        self._forms: dict[tuple[str, ...], _Form | None] = {}
        self._last: _Form | None = None

    def read(self, line: str, epoch: float | None) -> Row:
        """Return what a line says, under the epoch that was said last."""
        form = self._last
        found = form.pattern.fullmatch(line) if form and form.pattern else None
        if form is not None and found is not None:
            row = form.read(found.groups(), epoch)
            if 0.0 not in row.values.values():  # how a zero was rounded is read from its text
                return row
        parts = _FIGURE.split(line)
        figures = parts[1::2]
        key = (*parts[::2], "".join([_kind(figure) for figure in figures]))
        form = self._forms.get(key)
        if form is not None and form.pattern:
            self._last = form
            row = form.read(figures, epoch)
            if 0.0 not in row.values.values():
                return row
        row = _row_of(line, epoch, self._chosen)
        if not (form and form.pattern) and len(self._forms) < _MOST_FORMS:
            learned = _learn(row, figures)
            agreed = form is not None and learned == form
            if learned and agreed:
                learned = self._last = learned._replace(pattern=_compile(parts))
            self._forms[key] = learned
        return row


class _Form(NamedTuple):
    """
    Where the numbers of a line of one form stand; -1 where there is none.

    pattern: what a line of it looks like, once two lines have agreed on the places.
    """

    names: tuple[tuple[str, int], ...]
    step: int
    epoch: int
    total: int
    pattern: re.Pattern[str] | None = None

    def read(self, figures: Sequence[str], epoch: float | None) -> Row:
        """Return the row of a line of this form."""
        values = {name: float(figures[at]) for name, at in self.names}
        step = float(figures[self.step]) if self.step >= 0 else None
        epoch = float(figures[self.epoch]) if self.epoch >= 0 else epoch
        return Row(values, step, epoch, total=int(figures[self.total]) if self.total >= 0 else 0)


def _kind(figure: str) -> str:
    """Return whether a number is whole as it is written."""
    return "." if "." in figure or "e" in figure.lower() else "1"


def _compile(parts: Sequence[str]) -> re.Pattern[str]:
    """Return what lines look like that have other numbers in these places, of the same kind."""
    kinds = {"1": r"([-+]?\d+)", ".": r"([-+]?\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+))"}
    told = [kinds[_kind(p)] if n % 2 else re.escape(p) for n, p in enumerate(parts)]
    return re.compile("".join(told))


def _learn(row: Row, figures: list[str]) -> _Form | None:
    """Return where the numbers of a row stand in its line, if that is sure."""
    numbers = [float(figure) for figure in figures]
    asked = [*row.values.values(), *(n for n in (row.step, row.total or None) if n is not None)]
    if row.coarse or any(numbers.count(value) != 1 for value in asked) or not row.values:
        return None
    epochs = [at for at, number in enumerate(numbers) if number == row.epoch]
    if len(epochs) > 1:
        return None
    return _Form(
        tuple((name, numbers.index(value)) for name, value in row.values.items()),
        -1 if row.step is None else numbers.index(row.step),
        epochs[0] if epochs else -1,
        numbers.index(row.total) if row.total else -1,
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
