"""The tutorial and the how-tos are played: files are written, commands run, outputs compared."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PLAYED = ("tutorial", "script", "compare", "diagnose", "what_if")
PAGES = [*(DOCS / f"{name}.md" for name in PLAYED), *sorted((DOCS / "how_to").glob("*.md"))]
NEEDS = {  # what a page is about, and a bare environment lacks
    "accelerate": ["accelerate"],
    "lightning": ["lightning"],
    "trainer": ["transformers", "accelerate"],
    "curves": ["syrupy"],
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
PROGRAMS = {"torchrun": "torch.distributed.run"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_happens(page: Path, tmp_path: Path) -> None:
    """Each block is a file, a change of one, or a session whose output is as printed."""
    for library in NEEDS.get(page.stem, ()):
        pytest.importorskip(library)
    (tmp_path / "pyproject.toml").touch()
    if page.stem == "script":  # it goes on where the README ends
        (tmp_path / "train.py").write_text(first_file(DOCS.parent / "README.md"), encoding="utf-8")
    for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        first, _, rest = body.partition("\n")
        if kind == "console":
            for command, shown in sessions(body):
                play(command, shown, tmp_path)
            continue
        if kind == "text" and not first.startswith("# "):
            continue  # how something is called, or a picture
        assert first.startswith("# "), f"{page.name} has a block that no file has: {first}"
        file = tmp_path / first.removeprefix("# ")
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "diff":
            body = change(file.read_text(encoding="utf-8"), rest)
        file.write_text(rest if kind == "text" else body, encoding="utf-8")
        if kind == "yaml":
            for command in re.findall(r"run: ((?:trainguard|pytest) .*)", body):
                play(command, "", tmp_path)


def first_file(page: Path) -> str:
    """Return the first file that a page shows."""
    return next(body for kind, body in BLOCK.findall(page.read_text("utf-8")) if kind == "python")


def sessions(body: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a session, each with the output that is shown."""
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def change(text: str, hunk: str) -> str:
    """Return a text with what a block changes in it."""
    lines = hunk.splitlines()
    old, new = (
        "\n".join(line[1:] for line in lines if line[:1] in marks) for marks in (" -", " +")
    )
    assert text.count(old) == 1, f"there is no one place for the change:\n{hunk}"
    return text.replace(old, new)


def play(command: str, shown: str, folder: Path) -> None:
    """Run a command; what is shown stands in its output in this order, but for numbers."""
    program, *words = shlex.split(command)
    if program == "pip":  # whoever runs this has it
        return
    words = [sys.executable, "-m", PROGRAMS.get(program, program), *words]
    if program == "python":
        del words[1:3]
    run = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    printed = run.stdout + run.stderr
    assert run.returncode in ((0, 1) if shown else (0,)), printed
    place, told = 0, worded(printed)
    for piece in re.split(r"^\.\.\.$", shown, flags=re.M):
        found = told.find(worded(piece), place)
        assert found >= 0, f"`{command}` does not print\n{piece}\nbut\n{printed}"
        place = found + len(worded(piece))


def worded(text: str) -> str:
    """Return a text without its numbers, units of time and spaces."""
    return re.sub(r"[\d.]+( ms| s|e-\d+)?|\s+", " ", re.sub(r" -?inf| nan", " 0", text)).strip()


def test_a_page_that_is_not_true_is_found(tmp_path: Path) -> None:
    """The player can fail: by an output, by an exit code, by a change that fits nowhere."""
    with pytest.raises(AssertionError, match="does not print"):
        play("python -c 'print(1)'", "one", tmp_path)
    with pytest.raises(AssertionError):
        play("python -c 'raise SystemExit(2)'", "", tmp_path)
    assert change("a = 1\n", "-a = 1\n+b = 1\n") == "b = 1\n"
    with pytest.raises(AssertionError, match="no one place"):
        change("a = 1\n", "-b = 1\n+c = 1\n")
