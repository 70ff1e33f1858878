"""Cells of a notebook: their code has the name of a file that nobody has ever seen."""

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_NUMBER: Final = re.compile(r"\d+")
try:
    _ROOT = Path.cwd()  # a script may go elsewhere later
except OSError:  # somebody has removed it
    _ROOT = Path(sys.prefix)


def cell_of(file: str) -> str:
    """Return the cell that code came from, such as `cell 3`; nothing where it is from a file."""
    python: Any = sys.modules.get("IPython")
    with suppress(Exception):  # of another version, or not the one that runs this code
        shell = python.get_ipython()
        # `In[3]`: the number that the notebook shows beside the cell.
        return f"cell {_NUMBER.findall(shell.compile.format_code_name(file)[1])[-1]}"
    return ""


def cell_source(source: str) -> str:
    """Return `cell 3, line 7` for a line of a cell, and any other `file:line` as it is."""
    file, _, line = source.rpartition(":")
    cell = cell_of(file)
    return f"{cell}, line {line}" if cell else source


def short_source(source: str) -> str:
    """Return `src/train.py:7` for a line as seen from here; `cell 3, line 7` for that of a cell."""
    told = cell_source(source)
    if told != source:
        return told
    path = Path(source)
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name
