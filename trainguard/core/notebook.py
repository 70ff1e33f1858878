"""Cells of a notebook: their code has the name of a file that nobody has ever seen."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    _ROOT = Path.cwd()  # a script may go elsewhere later
except OSError:  # somebody has removed it
    _ROOT = Path(sys.prefix)


def cell_of(file: str) -> str:
    """Return the cell that code came from, such as `In[3]`; nothing where it is from a file."""
    python: Any = sys.modules.get("IPython")
    with suppress(Exception):  # of another version, or not the one that runs this code
        shell = python.get_ipython()
        return str(shell.compile.format_code_name(file)[1])
    return ""


def short_source(source: str) -> str:
    """Return `src/train.py:7` for a line of a file, as seen from here; `In[3]:7` for a cell's."""
    file, colon, line = source.rpartition(":")
    cell = cell_of(file)
    if cell:
        return f"{cell}{colon}{line}"
    path = Path(source)
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name
