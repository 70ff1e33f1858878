"""
The formats of a report, one module each: what a run comes to, for those that read no terminal.

A `RunAccount` is all that a format is given of a run. A format is a module with two functions:
`tell` puts one account into plain values, which another process can send, and `write` makes a text
of what was told of one run or of several. It has a line in `FORMATS` of table.py, which the command
line and the plugin read.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Place
from trainguard.events.trace import Trace
from trainguard.judging.verdict import Verdict
from trainguard.report import log_summary, run_summary
from trainguard.report.run_summary import RunSummary
from trainguard.report.text import render_verdict
from trainguard.subjects.log import Log
from trainguard.subjects.loop import Script
from trainguard.subjects.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccount:
    """
    What a run came to, or what was judged of a declared subject.

    text: the report, as it is printed. root: the folder that paths are told from.
    others: (rank, invariant, report) of what only other processes of the run have found.
    owner: the node id of a subject that pytest judged. faults: (invariant, report) of why it could
        not be observed.
    """

    subject: Subject
    verdicts: tuple[Verdict, ...]
    told: RunSummary
    trace: Trace[Any]
    text: str
    root: Path
    others: tuple[tuple[int, str, str], ...] = ()
    owner: str = ""
    faults: tuple[tuple[str, str], ...] = ()

    def found(self) -> Iterator[tuple[Verdict, Finding, bool]]:
        """Yield what counts, with whether it fails; what is excused does not count."""
        for verdict in self.verdicts:
            if verdict.outcome in ("broken", "passed", "known"):
                for finding in verdict.findings:
                    yield verdict, finding, verdict.strict or finding.rank is Rank.BROKEN

    def stale(self) -> Iterator[Verdict]:
        """Yield the verdicts whose excuse excuses nothing."""
        return (verdict for verdict in self.verdicts if verdict.outcome == "stale")

    def apart(self) -> Iterator[tuple[str, str]]:
        """Yield invariant and text of what fails for a reason that is no finding made here."""
        for verdict in self.stale():
            yield verdict.invariant.name, render_verdict(verdict)
        for rank, name, text in self.others:
            yield name, f"Found by rank {rank}:\n{text}"
        yield from self.faults

    @property
    def is_log(self) -> bool:
        """Whether the run is known by its logs."""
        return "log" in self.trace.conditions

    @property
    def name(self) -> str:
        """The node id of a subject, the script, or one of several runs that logs are of."""
        if self.owner:
            return self.owner
        return self.trace.subject if isinstance(self.subject, Log) else self.subject.name

    @property
    def kind(self) -> str:
        """What the subject is declared as, such as `tg.Loss`."""
        return f"tg.{type(self.subject).__name__}"

    @property
    def headline(self) -> str:
        """One sentence on the run."""
        if self.is_log:
            return log_summary.headline(self.trace)
        if self.owner and not self.told.steps:
            return f"{self.owner}: {self.kind}"
        return run_summary.headline(self.told, self.name)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What is known of the run as labelled rows; nothing where none was made."""
        if self.owner and not (self.told.steps or self.is_log):
            return []
        return log_summary.as_rows(self.trace) if self.is_log else run_summary.as_rows(self.told)

    @property
    def _path(self) -> str | Path:
        """The script, the file of a declaration, or the first of the logs of a run."""
        if isinstance(self.subject, Script):
            return self.subject.path
        if not isinstance(self.subject, Log):
            return self.subject.file
        files = self.trace.conditions.get("files")
        return str(files[0]) if isinstance(files, tuple) and files else self.trace.subject

    def locate(self, place: Place) -> tuple[str, int]:
        """Return file and line of a place, or else the script; the file as seen from the root."""
        path = Path(place.file or self._path)
        path = path if path.is_absolute() else self.root / path
        shown = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        declared = 0 if place.file or self._path != self.subject.file else self.subject.line
        return shown.as_posix(), place.line or declared or 1

    def locate_in_workspace(self, place: Place) -> tuple[str, int]:
        """Return the same as seen from the workspace of GitHub, where the file lies below it."""
        file, line = self.locate(place)
        workspace = os.environ.get("GITHUB_WORKSPACE")
        path = (self.root / file).resolve()
        if not workspace or not path.is_relative_to(Path(workspace).resolve()):
            return file, line
        return path.relative_to(Path(workspace).resolve()).as_posix(), line


def state_finding(finding: Finding) -> str:
    """Return a finding as a paragraph: what is wrong, measured against allowed, and why."""
    parts = [f"{finding.summary}."]
    if finding.measured:
        allowed = f", allowed: {finding.allowed}" if finding.allowed else ""
        parts.append(f"Measured: {finding.measured}{allowed}.")
    if finding.at:
        parts.append(f"At: {finding.at}.")
    if finding.why:
        parts.append(f"Why: {finding.why}.")
    return " ".join(parts)
