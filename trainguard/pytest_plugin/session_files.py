"""The files of a session: the baseline that it is held against, and a page of what was judged."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from trainguard.core.files import check_writable, write_whole
from trainguard.events.trace import Trace
from trainguard.judging.baseline import Baseline, entries_of, open_baseline
from trainguard.judging.verdict import Verdict
from trainguard.report.formats import RunAccount
from trainguard.report.formats.github_format import write
from trainguard.report.formats.html_format import PagePart, Told, tell, write_page
from trainguard.report.run_report import baseline_as_rows
from trainguard.report.run_summary import as_rows, headline, summarize_run

FILES: Final = pytest.StashKey["SessionFiles"]()
_PREFIX: Final = "--trainguard-"


@dataclass(slots=True)
class SessionFiles:
    """
    What a session is held against, and what is written of it.

    judged, traces: by node id of the subject, where a page is asked for. pages: of other processes.
    annotations: of what fails, for the pull request; None outside of GitHub Actions.
    """

    baseline: Baseline
    html: Path | None
    judged: dict[str, list[Verdict]] = field(default_factory=dict)
    traces: dict[str, Trace[Any]] = field(default_factory=dict)
    pages: list[Told] = field(default_factory=list)
    annotations: list[str] | None = None

    def hold(self, owner: str, judged: Verdict, observed: Callable[[], Trace[Any]]) -> Verdict:
        """Return a verdict in which what is known does not fail, and keep it for the page."""
        held = self.baseline.settle(self.baseline.hold(judged, owner), owner)
        if self.annotations is not None and (text := _annotate(held)):
            self.annotations.append(text)
        if self.html is not None:
            self.judged.setdefault(owner, []).append(held)
            run = judged.invariant.probe == "run" and judged.outcome != "skipped"
            if run and owner not in self.traces:
                self.traces[owner] = observed()
        return held

    def send(self) -> dict[str, Any]:
        """Return all that was seen here in plain values, for the process that writes."""
        known = self.baseline
        told = {"pages": self._tell(), "annotations": self.annotations}
        return {**told, "seen": known.seen_text(), "judged": [*known.judged]}

    def take(self, sent: dict[str, Any]) -> None:
        """Take over what another process has seen."""
        self.pages += sent["pages"]
        if self.annotations is not None:
            self.annotations += sent["annotations"] or []
        self.baseline.see(entries_of(sent["seen"]))
        self.baseline.judged |= {tuple(each) for each in sent["judged"]}

    def write(self) -> list[str]:
        """Write what was asked for; return what is to be said of it."""
        told = [text for _, text in baseline_as_rows(self.baseline)]
        if self.baseline.path is not None and self.baseline.writes:
            told += _write(self.baseline.path, self.baseline.to_text)
        if self.html is not None:
            told += _write(self.html, lambda: write_page([*self._tell(), *self.pages]))
        return told

    def _tell(self) -> list[Told]:
        """Return what the page tells of each subject that was judged here."""
        return [tell(_part(own, each, self.traces.get(own))) for own, each in self.judged.items()]


def open_files(config: pytest.Config) -> SessionFiles:
    """Read what a session is held against; raises for files that cannot be meant."""
    option = config.option
    html = option.trainguard_html and check_writable(f"{_PREFIX}html", Path(option.trainguard_html))
    path = option.trainguard_baseline and Path(option.trainguard_baseline)
    baseline = open_baseline(path, option.trainguard_update_baseline, _PREFIX)
    in_actions = os.environ.get("GITHUB_ACTIONS") == "true"
    return SessionFiles(baseline, html, annotations=[] if in_actions else None)


def _annotate(judged: Verdict) -> str:
    """Return the annotations of a pull request for what a verdict found."""
    trace = Trace[Any](judged.subject.name, ())
    account = RunAccount(
        subject=judged.subject,
        verdicts=(judged,),
        told=summarize_run(trace),
        trace=trace,
        text="",
        root=Path.cwd(),
    )
    return write([account])


def _part(owner: str, verdicts: list[Verdict], trace: Trace[Any] | None) -> PagePart:
    """Return what a page has of one subject: of a run also its curves."""
    name = owner.rpartition("::")[2]
    kind = f"tg.{type(verdicts[0].subject).__name__}"
    if trace is None:
        empty: Trace[Any] = Trace(name, ())
        head = f"{owner}: {kind}"
        return PagePart(name=owner, headline=head, rows=(), verdicts=verdicts, trace=empty)
    run = summarize_run(trace)
    head, rows = headline(run, owner), as_rows(run)
    return PagePart(name=owner, headline=head, rows=rows, verdicts=verdicts, trace=trace)


def _write(path: Path, text: Callable[[], str]) -> list[str]:
    """Write a file; return why that was not possible."""
    try:
        write_whole(path, text())
    except OSError as error:
        return [f"{path} could not be written: {error.strerror}"]
    return []
