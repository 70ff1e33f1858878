"""`trainguard diagnose`: the logs of runs that are over, read, judged and reported."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trainguard.command.exit import CLEAN, FOUND, USAGE, ending
from trainguard.command.options import (
    SILENCE,
    Words,
    check_file,
    check_installed,
    name_only,
    open_baseline,
    read_excuses,
    read_settings,
    split_columns,
)
from trainguard.command.output import say, write_baseline, write_file
from trainguard.core.catalogue import catalogue
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace
from trainguard.judging.baseline import Baseline
from trainguard.judging.judge import judge_run
from trainguard.judging.verdict import Verdict
from trainguard.logs.entry import read_logs
from trainguard.report import log_summary, run_summary
from trainguard.report.formats.html_format import PagePart, write_page
from trainguard.report.json import VERSION, check_apart, findings, render
from trainguard.report.progress import showing
from trainguard.report.run_report import baseline_as_rows, render_report
from trainguard.report.text import render_rows
from trainguard.subjects.log import Log
from trainguard.subjects.loop import Script


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest:
    """What the command line asks for."""

    subject: Log
    settings: Settings = field(default_factory=Settings)
    json: Path | None = None
    html: Path | None = None
    baseline: Baseline = field(default_factory=Baseline)
    verbose: bool = False
    command: str = ""


def diagnose_logs(
    paths: Annotated[
        list[str], typer.Argument(help="Logs of a run that is over, or folders of them.")
    ],
    column: Annotated[
        Words, typer.Option(help="What a column is: loss=train/nll.", metavar="ROLE=NAME")
    ] = None,
    falls: Annotated[
        float | None, typer.Option(help="Promise: the share the loss falls by.", metavar="SHARE")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Promise: classes of the cross-entropy.", metavar="N")
    ] = None,
    peak: Annotated[
        float | None, typer.Option(help="Promise: the highest rate.", metavar="RATE")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the findings to this file.", metavar="FILE")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the curves.", metavar="FILE")
    ] = None,
    select: Annotated[Words, typer.Option(help="Judge only these.", metavar="GLOBS")] = None,
    ignore: Annotated[Words, typer.Option(help="Judge all but these.", metavar="GLOBS")] = None,
    allow: Annotated[
        Words, typer.Option(help="Excuse one; a stale excuse fails.", metavar="NAME=REASON")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let notes fail too.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="Fail only for what is not in it.", metavar="FILE")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write it anew, with what is found.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name what had nothing to judge.")
    ] = False,
) -> None:
    """
    Judge runs that are over by their logs: nothing is run.

    Exits with 0 where nothing is found, 1 with findings, 2 where there was nothing to judge, 4
    where trainguard failed, and 130 after Ctrl-C.
    """
    with ending():
        if html is not None:
            check_installed("--html", "jinja2")
        subject = Log(
            tuple(paths),
            columns=split_columns(column),
            allow=read_excuses(allow),
            falls=falls,
            classes=classes,
            peak=peak,
        )
        order = DiagnoseRequest(
            subject=subject,
            settings=read_settings(select, ignore, strict, read=True),
            json=check_file("--json", json),
            html=check_file("--html", html),
            baseline=open_baseline(baseline, update_baseline),
            verbose=verbose,
            command=shlex.join(["trainguard", *sys.argv[1:]]),
        )
        raise typer.Exit(diagnose(order))


def diagnose(order: DiagnoseRequest) -> int:
    """Read the logs, judge each run in them, report it, and return the exit code."""
    subject = order.subject
    name_only(subject)
    paths = [subject.paths] if isinstance(subject.paths, str | Path) else subject.paths
    held = order.baseline
    check_apart(
        [order.json, order.html, held.path], [path for path in map(Path, paths) if path.exists()]
    )
    with ExitStack() as stack:
        read = [0]
        stack.enter_context(showing(lambda seconds: f"{read[0]:,} rows read, {seconds:.0f} s"))
        traces = read_logs(subject, partial(_count, read))
    judged = [(trace, _judge(order, trace)) for trace in traces]
    judged = [(trace, tuple(map(held.settle, verdicts))) for trace, verdicts in judged]
    written = True
    if order.json is not None:
        text = partial(_document, order, judged)
        written &= write_file(order.json, text, sys.stderr)
    if order.html is not None:
        written &= write_file(order.html, partial(_page, judged), sys.stderr)
    written &= write_baseline(held, sys.stderr)
    told = [_report(order, trace, verdicts) for trace, verdicts in judged]
    told += [render_rows([], rows)] if (rows := baseline_as_rows(held)) else []
    report = "\n\n".join(told)
    written &= say(report, sys.stdout, sys.stderr) or bool(order.json or order.html)
    if any(verdict.fails for _, verdicts in judged for verdict in verdicts):
        return FOUND
    return CLEAN if written else USAGE


def _count(read: list[int], rows: int) -> None:
    """Note how many rows of a file were read."""
    read[0] = max(rows, read[0])


def _judge(order: DiagnoseRequest, trace: Trace[Any]) -> tuple[Verdict, ...]:
    """Judge one run; one that was recorded by all that judges a recorded run."""
    subject = order.subject
    run: Log | Script = replace(subject, name=trace.subject)
    if "log" not in trace.conditions:
        run = Script(trace.subject, name=trace.subject, allow=_of_loops(subject))
    verdicts = judge_run(name_only(run), trace, order.settings, order.command, SILENCE)
    return tuple(map(order.baseline.hold, verdicts))


def _of_loops(subject: Log) -> dict[str, str]:
    """Return the excuses of a subject that are about what judges a recorded run."""
    names = {made.name for made in catalogue("loop")}
    return {name: reason for name, reason in subject.allow.items() if name in names}


def _report(order: DiagnoseRequest, trace: Trace[Any], verdicts: tuple[Verdict, ...]) -> str:
    """Return what is printed of one run."""
    head, rows = _summary(trace)
    strict, by_name = order.settings.strict, order.verbose
    return render_report(verdicts, head, rows, strict=strict, by_name=by_name)


def _summary(trace: Trace[Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return one sentence on a run, and labelled rows."""
    if "log" in trace.conditions:
        return log_summary.headline(trace), log_summary.as_rows(trace)
    told = run_summary.summarize_run(trace)
    return run_summary.headline(told, trace.subject), run_summary.as_rows(told)


def _page(judged: Sequence[tuple[Trace[Any], tuple[Verdict, ...]]]) -> str:
    """Return the page: the curves of each run, with its findings at their steps."""
    parts = []
    for trace, verdicts in judged:
        head, rows = _summary(trace)
        part = PagePart(
            name=trace.subject, headline=head, rows=rows, verdicts=verdicts, trace=trace
        )
        parts.append(part)
    return write_page(parts)


def _document(
    order: DiagnoseRequest, judged: Sequence[tuple[Trace[Any], tuple[Verdict, ...]]]
) -> str:
    """Return the JSON document: one entry for each run."""
    runs = [
        {"run": trace.subject, **findings(verdicts), "log": log_summary.as_plain(trace)}
        for trace, verdicts in judged
    ]
    command = shlex.split(order.command)
    return render({"version": VERSION, "args": command[1:], "runs": runs})
