"""The files of a session: the baseline that it is held against, and formats of what was judged."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from trainguard.core.catalogue import Invariant
from trainguard.core.errors import DeclarationError
from trainguard.core.files import check_installed, check_writable, write_whole
from trainguard.events.trace import Trace
from trainguard.judging.baseline import Baseline, entries_of, open_baseline
from trainguard.judging.verdict import Verdict
from trainguard.report.formats import RunAccount
from trainguard.report.formats.table import FORMATS, split_format, write_told
from trainguard.report.json import check_apart
from trainguard.report.run_report import baseline_as_rows, render_report
from trainguard.report.run_summary import summarize_run
from trainguard.subjects.subject import Subject

FILES: Final = pytest.StashKey["SessionFiles"]()
_PREFIX: Final = "--trainguard-"


@dataclass(slots=True)
class JudgedSubject:
    """What became of one subject: its verdicts, why others could not be reached, and its run."""

    subject: Subject
    verdicts: list[Verdict] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    trace: Trace[Any] | None = None


@dataclass(slots=True)
class SessionFiles:
    """
    What a session is held against, and what is written of it.

    formats: those asked for with their files; a None stands for the end of what is printed.
    judged: by node id of the subject, where a format is asked for. told: by other processes, for
    each format.
    """

    baseline: Baseline
    formats: tuple[tuple[str, Path | None], ...]
    root: Path
    strict: bool = False
    judged: dict[str, JudgedSubject] = field(default_factory=dict)
    told: dict[str, list[Any]] = field(default_factory=dict)

    def hold(self, owner: str, judged: Verdict, observed: Callable[[], Trace[Any]]) -> Verdict:
        """Return a verdict in which what is known does not fail, and keep it for the files."""
        held = self.baseline.settle(self.baseline.hold(judged, owner), owner)
        if self.formats:
            of = self.judged.setdefault(owner, JudgedSubject(judged.subject))
            of.verdicts.append(held)
            run = judged.invariant.probe == "run" and judged.outcome != "skipped"
            if run and of.trace is None:
                of.trace = observed()
        return held

    def fail(self, owner: str, subject: Subject, invariant: Invariant, text: str) -> None:
        """Keep why a subject could not be observed."""
        if self.formats:
            of = self.judged.setdefault(owner, JudgedSubject(subject))
            of.faults.append((invariant.name, text))

    def send(self) -> dict[str, Any]:
        """Return all that was seen here in plain values, for the process that writes."""
        known = self.baseline
        told = {name: self._tell(name) for name, _ in self.formats}
        return {"told": told, "seen": known.seen_text(), "judged": [*known.judged]}

    def take(self, sent: dict[str, Any]) -> None:
        """Take over what another process has seen."""
        for name, told in sent["told"].items():
            self.told.setdefault(name, []).extend(told)
        self.baseline.see(entries_of(sent["seen"]))
        self.baseline.judged |= {tuple(each) for each in sent["judged"]}

    def write(self) -> list[str]:
        """Write what was asked for; return what is to be said of it."""
        told = [text for _, text in baseline_as_rows(self.baseline)]
        if self.baseline.path is not None and self.baseline.writes:
            told += _write(self.baseline.path, self.baseline.to_text)
        for name, path in self.formats:
            if path is not None:
                told += _write(path, partial(self._text, name))
        return told

    def printed(self) -> list[str]:
        """Return the lines that are printed besides those of pytest."""
        texts = [self._text(name) for name, path in self.formats if path is None]
        return [line for text in texts for line in text.splitlines()]

    def _text(self, name: str) -> str:
        """Return all that was judged in a format."""
        return write_told(name, [*self._tell(name), *self.told.get(name, ())])

    def _tell(self, name: str) -> list[Any]:
        """Return what a format tells of each subject that was judged here."""
        return [FORMATS[name].tell(self._account(*each)) for each in self.judged.items()]

    def _account(self, owner: str, of: JudgedSubject) -> RunAccount:
        """Return what was judged of one subject: of a run also its numbers."""
        account = RunAccount(
            subject=of.subject,
            verdicts=tuple(of.verdicts),
            told=summarize_run(of.trace or Trace[Any](owner, ())),
            trace=of.trace or Trace[Any](owner, ()),
            text="",
            root=self.root,
            owner=owner,
            faults=tuple(of.faults),
        )
        text = render_report(
            account.verdicts,
            account.headline,
            account.rows,
            strict=self.strict,
            by_name=False,
            others="\n\n".join(text for _, text in of.faults),
        )
        return replace(account, text=text)


def open_files(config: pytest.Config, *, strict: bool) -> SessionFiles:
    """Read what a session is held against; raises for files that cannot be meant."""
    option = config.option
    asked = [("format", word) for word in option.trainguard_format or ()]
    asked += [("html", f"html={option.trainguard_html}")] if option.trainguard_html else []
    formats: list[tuple[str, Path | None]] = [*map(_read_format, asked)]
    path = option.trainguard_baseline and Path(option.trainguard_baseline)
    baseline = open_baseline(path, option.trainguard_update_baseline, _PREFIX)
    check_apart([*(file for _, file in formats), baseline.path])
    if os.environ.get("GITHUB_ACTIONS") == "true" and not any(n == "github" for n, _ in formats):
        formats.append(("github", None))
    return SessionFiles(baseline, tuple(formats), config.invocation_params.dir, strict)


def _read_format(asked: tuple[str, str]) -> tuple[str, Path]:
    """Return a format and its file; raises for what cannot be written."""
    option = f"{_PREFIX}{asked[0]}"
    name, file = split_format(option, asked[1])
    if not file:
        raise DeclarationError(f"{option} {name} names no file. Write {name}=<file>.")
    if name == "html":
        check_installed(option, "jinja2")
    return name, check_writable(option, Path(file))


def _write(path: Path, text: Callable[[], str]) -> list[str]:
    """Write a file; return why that was not possible."""
    try:
        write_whole(path, text())
    except OSError as error:
        return [f"{path} could not be written: {error.strerror}"]
    return []
