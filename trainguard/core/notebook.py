"""Cells of a notebook: their code has the name of a file that nobody has ever seen."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def cell_of(file: str) -> str:
    """Return the cell that code came from, such as `In[3]`; nothing where it is from a file."""
    python: Any = sys.modules.get("IPython")
    with suppress(Exception):  # of another version, or not the one that runs this code
        shell = python.get_ipython()
        return str(shell.compile.format_code_name(file)[1])
    return ""


def short_source(source: str) -> str:
    """Return `train.py:7` for a line of a file, `In[3]:7` for one of a cell."""
    file, colon, line = source.rpartition(":")
    cell = cell_of(file)
    if cell:
        return f"{cell}{colon}{line}"
    return Path(source).name
