"""Where what a line is given was cut out of all data, or scaled."""

import importlib.util
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from trainguard.observe.tools import sample_lines


def look_at(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """Return the lines that cut and scale what `look` is given in a file that is run."""
    file = folder / "train.py"
    file.write_text(dedent(text).removeprefix("\n"), "utf-8")
    seen: list[tuple[list[str], list[str]]] = []

    def look(*_: object, **__: object) -> int:
        """Follow what it was given, from the line that calls it."""
        frame = sys._getframe(1)
        cuts = [line for line in [sample_lines.find_cut(frame)] if line]
        seen.append((cuts, sample_lines.find_scalings(frame)))
        return 1

    spec = importlib.util.spec_from_file_location("written", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["look"] = look
    spec.loader.exec_module(module)
    cuts, scaled = seen[0]
    return [line.rpartition(":")[2] for line in cuts], [s.rpartition(":")[2] for s in scaled]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("all = [1, 2, 3]\nrest = all[1:]\npart = all[:1]\nlook(part)\n", "3"),
        ("all = [1, 2, 3]\npart = all[:1]\nother = part\nlook(other)\n", "2"),
        ("all = [1, 2]\nlook(all)\npart = all[:1]\n", ""),  # later
        ("all = [1, 2]\npart = all[:]\nfirst = all[0]\nlook(part, first)\n", ""),  # all, one
        ("all = [1, 2]\npart = all[1:]\nfor x in part:\n    look(x)\n", "2"),
        ("all = [1, 2]\na, b = all[:1], all[1:]\nfor x, y in zip(a, b):\n    look(x)\n", "2"),
        ("def f(rows):\n    look(rows)\n\nall = [1, 2]\npart = all[1:]\nf(part)\n", "5"),
        (
            "def f(n, rows=()):\n    look(rows)\n\nall = [1, 2]\npart = all[1:]\nf(1, rows=part)\n",
            "5",
        ),
        ("all = [1, 2]\npart = all[1:]\ndef f():\n    look(part)\n\nf()\n", "2"),
        ("def f():\n    rows = [1, 2][1:]\n    g(rows)\n\ndef g(r):\n    look(r)\n\nf()\n", "2"),
        ("split = lambda x: x\nall = [1, 2]\npart = split(all)\nlook(part)\n", "3"),
        ("x = x0 = [1]\nlook(3)\n", ""),
        ("x = [1, 2][:1]\nfor x in x:\n    look(x)\n", "1"),
        ("a = [1][:1]\n" + "a = a + a\n" * 25 + "look(a)\n", "1"),  # in no time
        ("a = [1, 2][:1]\nfor i in (0,):\n    b = a[i : i + 1]\n    look(b)\n", "1"),  # a batch
        ("for i in (0,):\n    rows = slice(i)\n    b = [1][rows]\n    look(b)\n", ""),
        ("a = [1]\na = a[:1]\nlook(a)\n", "2"),
        ("def f(r):\n    r = r\n    look(r)\n\nf([1])\n", ""),
    ],
)
def test_the_line_that_cuts_is_found(tmp_path: Path, text: str, line: str) -> None:
    """By names, from their last assignment to the one before."""
    assert look_at(tmp_path, text)[0] == ([line] if line else [])


def test_what_a_method_keeps_is_followed(tmp_path: Path) -> None:
    """As self.rows is where one method alone sets it, in a function that is running."""
    text = """
    class Trainer:
        def run(self):
            self.rows = [1, 2, 3][2:]
            look(self.rows)

    Trainer().run()
    """
    assert look_at(tmp_path, text)[0] == ["3"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = [1]\nx = [v / 16 for v in x]\nx = [v * 2 for v in x]\nlook(x)\n", ["2", "3"]),
        ("x = 1 + 2\nx = x - 1\nlook(x)\n", []),
        ("to = int\nx = to(3)\nlook(x)\n", ["2"]),
        ("x = 1 / 2\n" + "\n" * 9 + "x = x / 2\nx = x / 2\nlook(x)\n", ["1", "11", "12"]),
        ("\n" * 9 + "x = 1 / 2\nx = x / 2\nlook(x)\n", ["9", "10"]),
        ("x = 1 / 2\ny = x / 2\ny = y / 2\ny = y / 2\ny = y / 2\nlook(y)\n", []),  # many
    ],
)
def test_lines_that_scale_are_found(tmp_path: Path, text: str, lines: list[str]) -> None:
    """All on the way, if they are few."""
    assert look_at(tmp_path, text)[1] == lines
