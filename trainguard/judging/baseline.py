"""A baseline: findings of a codebase as it is, written down so that only new ones fail."""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from trainguard.core.catalogue import current_name
from trainguard.core.errors import DeclarationError
from trainguard.core.files import check_writable
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Place
from trainguard.judging.verdict import Verdict

VERSION: Final = 1
_MARK: Final = "trainguard_baseline"  # the key that tells a baseline from other JSON
_FILES: Final = 64  # sources that are kept parsed
_INSTALLED: Final = re.compile(r".*/(?:site|dist)-packages/")
# Numbers that are no part of a name: they move with the run, and `layers.0.weight` does not.
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w]|\.\w)")
_LISTED: Final = re.compile(r"N(?:(?:, and |, | and )N)+")
_PLURAL: Final = re.compile(r"\bN (\w+?)s\b")


@dataclass(frozen=True, order=True, slots=True)
class BaselineEntry:
    """
    What a finding is known by, whatever lines and numbers move.

    config: the device and dtype of a declared subject. file: as seen from the folder of the
    baseline; function, code: around and on the line that did it. at: its place in words, with N for
    each number. what: its summary, for readers alone.
    """

    subject: str
    invariant: str
    config: str = ""
    file: str = ""
    function: str = ""
    code: str = ""
    at: str = ""
    what: str = field(compare=False, default="")

    @property
    def judged(self) -> tuple[str, str, str]:
        """The judgement that it is of: subject, invariant, device and dtype."""
        return self.subject, self.invariant, self.config

    def __str__(self) -> str:
        """Return where it is, in words."""
        where = f"{self.file}{f' in {self.function}' * bool(self.function)}"
        return ", ".join(filter(None, (where, self.code or self.at)))


@dataclass(slots=True)
class Baseline:
    """
    The findings that are known, and what of them a run has seen.

    path: the file; None where none was asked for, and nothing is known. writes: whether all that is
    found becomes known, and is written. prefix: of the options that ask for it. judged: what had
    something to judge. seen: what was found.
    """

    path: Path | None = None
    entries: frozenset[BaselineEntry] = frozenset()
    writes: bool = False
    prefix: str = "--"
    judged: set[tuple[str, str, str]] = field(default_factory=set)
    # The first of those that are alike.
    seen: dict[BaselineEntry, BaselineEntry] = field(default_factory=dict)
    root: Path = field(default_factory=Path.cwd)  # before the script goes elsewhere

    def hold(self, verdict: Verdict, subject: str = "") -> Verdict:
        """Return a verdict in which what is known does not fail; notes are never known."""
        if self.path is None or verdict.outcome == "skipped":
            return verdict
        judged = _judged(verdict, subject)
        self.judged.add(judged)
        if verdict.outcome != "broken":
            return verdict
        known, others = list(verdict.known), list[Finding]()
        for finding in verdict.findings:
            found = list(self._entries(judged, finding))
            self.see(found)
            held = bool(found) and (self.writes or self.entries.issuperset(found))
            (known if held else others).append(finding)
        told = replace(verdict, findings=tuple(others), known=tuple(known))
        return told if told.breaches else replace(told, outcome="known")

    def see(self, found: Iterable[BaselineEntry]) -> None:
        """Note what was found, here or in another process."""
        self.seen.update((entry, self.seen.get(entry, entry)) for entry in found)

    def settle(self, verdict: Verdict, subject: str = "") -> Verdict:
        """Return a verdict, once all is held, that is stale where something of it is mended."""
        if self.writes or verdict.outcome not in ("passed", "known", "excused"):
            return verdict
        judged = _judged(verdict, subject)
        gone = sorted(e for e in self.entries - self.seen.keys() if e.judged == judged)
        if not gone:
            return verdict
        gone_by = f"{self.prefix}update-baseline takes it out"
        why = f"{self.name} still has what does not occur any more: {gone_by}"
        return replace(verdict, outcome="stale", mended=tuple(map(str, gone)), reason=why)

    @property
    def name(self) -> str:
        """The name of the file."""
        return "" if self.path is None else self.path.name

    def renewed(self) -> list[BaselineEntry]:
        """Return what is known from now on: what was found, and what was not judged this time."""
        kept = [entry for entry in self.entries if entry.judged not in self.judged]
        return sorted({*self.seen.values(), *kept})

    def to_text(self) -> str:
        """Return the file, in an order of its own, so that its changes can be read."""
        return _to_text(self.renewed())

    def seen_text(self) -> str:
        """Return what this process has seen, for another one."""
        return _to_text(self.seen.values())

    def _entries(self, judged: tuple[str, str, str], finding: Finding) -> Iterator[BaselineEntry]:
        """Yield what a finding is known by, at each of its places; nothing for a note."""
        if finding.rank is Rank.NOTE or self.path is None:
            return
        for place in (finding.at, *finding.elsewhere):
            path = self.root / place.file if place.file else None
            file = _seen_from(self.path.parent, path)
            code = _read_code(path, place.line)
            yield BaselineEntry(*judged, file, *code, still(place), finding.summary)


def _judged(verdict: Verdict, subject: str) -> tuple[str, str, str]:
    """Return what is judged by a verdict: subject, invariant, device and dtype."""
    return subject or verdict.subject.name, verdict.invariant.name, str(verdict.config)


def open_baseline(path: Path | None, update: bool, prefix: str = "--") -> Baseline:
    """Return the baseline that is asked for; raises for a file that is none."""
    if path is None:
        if update:
            raise DeclarationError(
                f"{prefix}update-baseline has no file. Name it: {prefix}baseline FILE."
            )
        return Baseline()
    path = Path.cwd() / path
    if update or not path.is_file():
        check_writable(f"{prefix}baseline", path)
    return read_baseline(path, update=update, prefix=prefix)


def read_baseline(path: Path, *, update: bool = False, prefix: str = "--") -> Baseline:
    """Read a baseline; one that is not there yet will be written. Raises for any other file."""
    option = f"{prefix}baseline {path}"
    try:
        entries = frozenset(entries_of(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Baseline(path, writes=True, prefix=prefix)
    except OSError as error:
        raise DeclarationError(f"{option} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise DeclarationError(
            f"{option} is no baseline of trainguard ({error}). Name one, or a file that"
            " is not there yet."
        ) from None
    return Baseline(path, entries, writes=update, prefix=prefix)


def entries_of(text: str) -> list[BaselineEntry]:
    """Return the entries of the text of a baseline; raises ValueError where it is none."""
    told = json.loads(text)
    if not isinstance(told, dict) or _MARK not in told:
        raise ValueError(f"it has no {_MARK!r}")
    if told[_MARK] != VERSION:
        raise ValueError(f"its version is {told[_MARK]!r:.20}, and {VERSION} is read")
    listed = told.get("findings")
    if not isinstance(listed, list):
        raise ValueError("its findings are no list")  # noqa: TRY004 as of json
    return [_entry(number, plain) for number, plain in enumerate(listed, 1)]


def _to_text(entries: Iterable[BaselineEntry]) -> str:
    """Return entries as the text of a file."""
    plain = [{name: text for name, text in asdict(e).items() if text} for e in entries]
    told = {_MARK: VERSION, "findings": plain}
    return json.dumps(told, indent=2) + "\n"


def still(place: Place) -> str:
    """Return the words of a place without what moves from run to run."""
    words = _LISTED.sub("N", _NUMBER.sub("N", " ".join(place.split())))
    return _PLURAL.sub(r"N \1", words)


def _entry(number: int, plain: Any) -> BaselineEntry:
    """Return one entry of a file; raises ValueError for anything else."""
    names = [column.name for column in fields(BaselineEntry)]
    if not isinstance(plain, dict) or not set(plain) <= set(names):
        raise ValueError(f"its finding {number} is none")
    values = [plain.get(name, "") for name in names]
    if not all(isinstance(value, str) for value in values) or not all(values[:2]):
        raise ValueError(f"its finding {number} is none")
    values[1] = current_name(values[1])
    return BaselineEntry(*values)


def _seen_from(folder: Path, path: Path | None) -> str:
    """Return a path as every machine has it: from a folder, or from where packages are."""
    if path is None:
        return ""
    try:
        shown = Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        shown = path.as_posix()
    return _INSTALLED.sub("", shown)


def _read_code(path: Path | None, line: int | None) -> tuple[str, str]:
    """Return the function around a line of a file, and the line itself; empty where unknown."""
    if path is None or line is None:
        return "", ""
    lines, functions = _parse(path)
    code = " ".join(lines[line - 1].split()) if 0 < line <= len(lines) else ""
    around = [(end - first, name) for first, end, name in functions if first <= line <= end]
    return min(around, default=(0, ""))[1], code


@lru_cache(_FILES)
def _parse(path: Path) -> tuple[list[str], list[tuple[int, int, str]]]:
    """Return the lines of a file, and its functions: first line, last line, name with its class."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return [], []
    return text.splitlines(), list(_functions(tree.body, ""))


def _functions(body: Iterable[ast.AST], prefix: str) -> Iterator[tuple[int, int, str]]:
    """Yield the functions among statements, those inside others included."""
    for node in body:
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}."
            if not isinstance(node, ast.ClassDef):
                yield node.lineno, node.end_lineno or node.lineno, name[:-1]
        yield from _functions(ast.iter_child_nodes(node), name)
