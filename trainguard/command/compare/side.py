"""One side of a comparison: a script and its arguments, a loop at `file.py::name`, traces, logs."""

import ast
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainguard.command.options import file_of_module, name_only
from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace
from trainguard.observe.log.entry import read_logs
from trainguard.observe.log.find import is_log
from trainguard.subjects.log import Log
from trainguard.subjects.loop import Script, check_is_code

SEED: Final = "{seed}"  # in the arguments of a script, the number of the pair stands for it
_PYTHON: Final = ("python", "python3")
_MODULE: Final = "-m"  # before the name of a module, as for python
_HEADER: Final = b'{"subject"'  # how a trace begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """
    What is compared: runs that are to be made, or `traces` of runs that are over.

    text: as it was given. words: the script and its arguments, or the address of a loop; for a
        module, its name behind "-m".
    files: the script, the file of the loop, the traces, or the logs.
    """

    text: str
    words: tuple[str, ...] = ()
    traces: tuple[Trace[Any], ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def is_loop(self) -> bool:
        """Say whether it is a loop, rather than a script."""
        return bool(self.words) and "::" in self.words[0]

    def run(self, pair: int, steps: int | None, seconds: float) -> Trace[Any]:
        """Return one run of this side: the one of a pair, or what was recorded of it."""
        if self.traces:
            return self.traces[pair]
        if self.is_loop:
            from trainguard.observe.loop.run_processes import observe_apart  # late: torch

            return observe_apart(self.words[0], pair, steps, seconds)
        words = [word.replace(SEED, str(pair)) for word in self.words]
        module = words[0] == _MODULE
        path, *args = words[module:]
        name = path if module else Path(path).name
        script = name_only(Script(path, module=module, args=args, name=name, timeout=seconds))
        from trainguard.observe.loop.run_processes import observe_script  # late: torch

        return observe_script(script, Settings(), steps, probe=False)


def side(text: str) -> Side:
    """Say what an argument of the command line names; raises DeclarationError where nothing."""
    if os.path.isdir(text):  # noqa: PTH112 Path raises for what is too long to be a path
        return _folder(text)
    words = (text,) if os.path.isfile(text) else tuple(_words(text))  # noqa: PTH113 likewise
    if words[0] == _MODULE and len(words) > 1:
        return Side(text=text, words=words, files=(file_of_module(words[1]),))
    path, double, name = words[0].partition("::")
    if not os.path.isfile(path):  # noqa: PTH113 likewise
        near = [str(p) for p in Path(path).parent.glob("*.py")]
        raise DeclarationError(
            f"There is no script, loop, trace or log {path!r}."
            + (did_you_mean(path, near) if near else "")
        )
    if double:
        _check_name(path, name, words[1:])
    elif _is_trace(Path(path)):
        return Side(text=text, traces=(_trace(Path(path)),), files=(Path(path),))
    elif is_log(Path(path)):
        return _logs(text)
    else:
        check_is_code(Path(path))
    return Side(text=text, words=words, files=(Path(path),))


def _words(text: str) -> list[str]:
    """Split a script from its arguments as a shell does; `python` may stand before both."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise DeclarationError(f"{text!r} is no command: {str(error).lower()}.") from None
    if not words:
        raise DeclarationError("A side is empty. Give a script, a loop (file.py::name) or a trace.")
    return words[1:] if words[0] in _PYTHON and len(words) > 1 else words


def _folder(text: str) -> Side:
    """Return the traces in a folder, in the order of their names, or else the runs of its logs."""
    files = sorted(file for file in Path(text).iterdir() if file.is_file() and _is_trace(file))
    if not files:
        return _logs(text)
    return Side(text=text, traces=tuple(map(_trace, files)), files=tuple(files))


def _logs(text: str) -> Side:
    """Return the runs that a log, or a folder of logs, holds."""
    traces = tuple(read_logs(Log(text)))
    return Side(text=text, traces=traces, files=(Path(text),))


def _is_trace(file: Path) -> bool:
    """Say whether a file begins as a trace does."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(_HEADER)) == _HEADER
    except OSError as error:
        raise DeclarationError(f"{file} cannot be read: {error.strerror}.") from None


def _trace(file: Path) -> Trace[Any]:
    """Read a trace; raises DeclarationError for one that cannot be read whole."""
    try:
        trace: Trace[Any] = Trace.from_text(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DeclarationError(
            f"{file} is no whole trace of this version of trainguard: {str(error)[:60]}."
        ) from None
    return trace


def _check_name(path: str, name: str, more: tuple[str, ...]) -> None:
    """Raise where a file surely has no such name, before the other side has run for an hour."""
    if more:
        raise DeclarationError(f"{path}::{name} takes no arguments: {shlex.join(more)}.")
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError) as error:
        raise DeclarationError(f"{path} is not Python: {error}.") from None
    known = set(_names(tree))
    if name not in known and "*" not in known:
        raise DeclarationError(f"{path} has no {name!r}.{did_you_mean(name, known)}")


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a file may have: assigned, defined or imported, `*` for any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
