"""Where a line of code is, as a terminal can open it."""

from pathlib import Path

import pytest

from trainguard.core import notebook


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("/home/me/project/src/train.py:7", "src/train.py:7"),
        ("/home/me/other/train.py:7", "train.py:7"),
        ("train.py:7", "train.py:7"),
        ("", ""),
    ],
)
def test_a_line_is_told_from_the_root(source: str, shown: str, monkeypatch) -> None:
    """A file of the project has its path, any other one its name."""
    monkeypatch.setattr(notebook, "_ROOT", Path("/home/me/project"))
    assert notebook.short_source(source) == shown
