"""What a training printed: `key=value`, `key: value`, `| loss 2.31 |`, progress bars."""

import re
from collections.abc import Iterator
from pathlib import Path

from trainguard.core.log_line import numbers_in
from trainguard.logs.json_lines import row_of
from trainguard.logs.row import Lost, Row, figure
from trainguard.logs.text import lines_of

# A bar of tqdm: ` 45%|####5     | 450/1000 [00:10<00:12, 45.0it/s, loss=0.5]`.
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[[^\]]*")
_OF = re.compile(
    r"\b(?P<word>step|iter|iteration|batch|epoch|update)s?\s*[:=\[(#]?\s*"
    r"(?P<at>\d+)\s*(?:/|of)\s*(?P<of>\d+)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\s*[:=\[(#]?\s*(\d+)(?![\d.]|\s*%)", re.IGNORECASE)
_ODD = re.compile(  # spellings of no number that are no number of Python
    r"([A-Za-z_][\w/.-]*)['\"]?\s*[:=]\s*['\"]?"
    r"([-+]?(?:1\.#)?(?:nan|inf(?:inity)?|ind|qnan)\b(?:\([a-z]*\))?)",
    re.IGNORECASE,
)
_WORTH = re.compile(r"loss|nll|lr|learning|norm|acc", re.IGNORECASE)
_MEMORY = re.compile(r"out of memory", re.IGNORECASE)


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row | Lost]:
    """Yield a row for each line that says a number by name, and each allocation that failed."""
    wanted = tuple(chosen.values())
    epoch: float | None = None
    for number, line in enumerate(lines_of(file), 1):
        if _MEMORY.search(line):
            yield Lost(line, number)
            continue
        heading = _EPOCH.search(line)
        epoch = float(heading[1]) if heading else epoch
        if _WORTH.search(line) or any(name in line for name in wanted):
            row = _row_of(line, epoch, chosen)
            if row.values:
                yield row


def _row_of(line: str, epoch: float | None, chosen: dict[str, str]) -> Row:
    """Return what one line says."""
    values, coarse = dict[str, float](), dict[str, float]()
    for said in numbers_in(line[:2000]):
        name = said.name.strip()
        values[name] = said.value
        if said.value == 0 and 0 < said.rounding < 0.5:
            coarse[name] = said.rounding
    for odd in _ODD.finditer(line) if "n" in line.lower() else ():
        value = figure(odd[2])
        if value is not None:
            values.setdefault(odd[1], value)
    row = row_of(values, chosen)
    step, total = row.step, 0
    bar = _BAR.search(line)
    counted = next((f for f in _OF.finditer(line) if f["word"].lower() != "epoch"), None)
    if step is None and counted is not None:
        step, total = float(counted["at"]), int(counted["of"])
    elif step is None and bar is not None:
        step, total = float(bar[1]), int(bar[2])
    return row._replace(
        step=step, epoch=row.epoch if row.epoch is not None else epoch, coarse=coarse, total=total
    )
