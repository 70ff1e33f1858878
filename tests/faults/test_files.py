"""Mutants of every file that is read: told in a sentence, or read; never a traceback of ours."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command.compare.runs import run
from tests.faults.conftest import trouble
from tests.invariants.loop.conftest import judge
from tests.invariants.loop.runs.test_curves import PLACE, text
from trainguard.command.cli import app
from trainguard.core.catalogue import check_globs
from trainguard.core.errors import DeclarationError
from trainguard.core.settings import from_pyproject
from trainguard.events.curve import Kept
from trainguard.observe.memory import snapshot

MUTANTS = 500  # of each kind of file
ODD = ("nan", "1e400", "-0", "9" * 5000, "null", "[]", "{}", '""', "true", "\ud800", "[" * 3000)
NOISE = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"<<<<<<< HEAD\n",
    b'"',
    b"=",
    b"\xed",
)
SETTINGS = """
[project]
name = "vision"

[tool.trainguard]
select = ["loop.*", "loss.value_is_finite"]
ignore = ["gradient_is_bounded"]
devices = ["cpu"]
dtypes = ["float32", "bfloat16"]
profile = "quick"
files = ["guard_*.py"]
strict = true
"""
MEMORY = {
    "peak": 4096,
    "categories": {"parameters": 1024, "gradients": 1024},
    "sizes": {"B": 4},
    "how": "predicted",
    "torch": "2.6.0",
}


def mutate(data: bytes, dice: random.Random) -> bytes:
    """Change one or two things of a file as disks, editors, merges and hands do."""
    for _ in range(dice.randint(1, 2)):
        data = dice.choice([_flip, _cut, _shorten, _repeat, _insert, _exchange, _reorder])(
            data, dice
        )
    return data


def _flip(data: bytes, dice: random.Random) -> bytes:
    """Change a bit."""
    at = dice.randrange(len(data) or 1)
    changed = bytes([data[at] ^ 1 << dice.randrange(8)]) if data else b""
    return data[:at] + changed + data[at + 1 :]


def _cut(data: bytes, dice: random.Random) -> bytes:
    """Leave the end out."""
    return data[: dice.randrange(len(data) or 1)]


def _shorten(data: bytes, dice: random.Random) -> bytes:
    """Leave out a piece."""
    at = dice.randrange(len(data) or 1)
    return data[:at] + data[at + dice.randint(1, 40) :]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    """Write a piece twice."""
    at = dice.randrange(len(data) or 1)
    end = at + dice.randint(1, 200)
    return data[:end] + data[at:]


def _insert(data: bytes, dice: random.Random) -> bytes:
    """Put in what does not belong there."""
    at = dice.randrange(len(data) or 1)
    return data[:at] + dice.choice(NOISE) * dice.randint(1, 3) + data[at:]


def _exchange(data: bytes, dice: random.Random) -> bytes:
    """Put an odd value in the place of a number or a word."""
    words = [word for word in data.replace(b",", b" ").replace(b":", b" ").split() if word]
    if not words:
        return data
    odd = dice.choice(ODD).encode("utf-8", "surrogatepass")
    return data.replace(dice.choice(words), odd, 1)


def _reorder(data: bytes, dice: random.Random) -> bytes:
    """Put two lines in each other's place."""
    lines = data.split(b"\n")
    a, b = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def read_settings(file: Path) -> None:
    """Read settings as the commands do."""
    try:
        settings = from_pyproject(file.parent)
        check_globs("select", settings.select)
        check_globs("ignore", settings.ignore)
    except DeclarationError:
        return


def read_curve(file: Path) -> None:
    """Judge a curve by its snapshot."""
    kept = file.read_text(encoding="utf-8", errors="replace")
    for finding in judge(
        "curve_matches_snapshot", [Kept(column="loss", place=PLACE, found=text(), kept=kept)]
    ):
        assert finding.summary


def read_memory(file: Path) -> None:
    """Read a snapshot of memory, and hold it against what was seen."""
    kept = snapshot._read_snapshot(file)
    if kept is not None:
        assert kept["peak"] > 0
        assert isinstance(snapshot._unlike(kept, MEMORY), str)
        assert sum(kept["categories"].values()) >= 0


FILES: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "settings": ("pyproject.toml", SETTINGS, read_settings),
    "curve": ("x.curve", text(), read_curve),
    "memory": ("x.json", json.dumps(MEMORY, indent=2), read_memory),
}


@pytest.mark.parametrize("kind", FILES)
def test_mutants(kind: str, tmp_path: Path, bench) -> None:
    """Whoever reads them raises nothing but what is meant to be told."""
    name, whole, read = FILES[kind]
    file = tmp_path / name
    for number in range(MUTANTS):
        content = mutate(whole.encode(), random.Random(f"{kind}{number}"))
        file.write_bytes(content)
        try:
            read(file)
        except Exception as error:  # noqa: BLE001 whatever it is, it is ours
            bench.hold((number, content), f"{type(error).__name__}: {error}")
        else:
            bench.hold(number)


@pytest.mark.parametrize("part", range(5))
def test_mutants_of_traces(part: int, tmp_path: Path, bench) -> None:
    """The command that compares two of them says what is wrong, and reports no fault of its own."""
    whole = replace(run(count=6, evaluated=(0.5,)), conditions={}).to_text().encode()
    (tmp_path / "a.jsonl").write_bytes(whole)
    for number in range(MUTANTS // 5):
        content = mutate(whole, random.Random(f"trace{part}.{number}"))
        file = tmp_path / "b.jsonl"
        file.write_bytes(content)
        ended = CliRunner().invoke(app, ["compare", str(tmp_path / "a.jsonl"), str(file)])
        bench.hold((part, number, content), trouble(ended.exit_code, ended.output))
