"""One metric of an MLflow file store: a file with `milliseconds value step` on each line."""

import re
from collections.abc import Iterator
from pathlib import Path

from trainguard.observe.log.row import Row, figure
from trainguard.observe.log.text import lines_of

_LINE = re.compile(r"\s*(\d{12,14}) (\S{1,64})(?: (-?\d{1,18}))?\s*")


def is_metric(lines: list[str]) -> bool:
    """Say whether some first lines are those of a metric."""
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)


def rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a metric, which is named as its file is below `metrics`."""
    parts = file.parts
    at = len(parts) - 1 - parts[::-1].index("metrics") if "metrics" in parts else len(parts) - 2
    name = "/".join(parts[at + 1 :])
    for line in lines_of(file, whole=True):
        found = _LINE.fullmatch(line)
        value = figure(found[2]) if found else None
        if found and value is not None:
            step = float(found[3]) if found[3] else None
            yield Row({name: value}, step, None, float(found[1]) / 1e3)
