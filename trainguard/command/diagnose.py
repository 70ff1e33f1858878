"""`trainguard diagnose`: the logs of runs that are over, read, judged and reported."""

import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trainguard.command.exit import CLEAN, FOUND, USAGE, ending
from trainguard.command.options import (
    SILENCE,
    AllowOption,
    BaselineOption,
    FallsOption,
    FormatOption,
    IgnoreOption,
    JsonOption,
    SelectOption,
    StrictOption,
    UpdateOption,
    VerboseOption,
    Words,
    check_file,
    name_only,
    read_excuses,
    read_settings,
    split_columns,
    split_formats,
)
from trainguard.command.output import Audience, write_baseline
from trainguard.core.catalogue import catalogue
from trainguard.core.files import check_installed
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace
from trainguard.judging.baseline import Baseline, open_baseline
from trainguard.judging.judge import judge_run
from trainguard.judging.verdict import Verdict
from trainguard.observe.log.entry import read_logs
from trainguard.observe.log.find import is_there
from trainguard.observe.log.reading import how_far
from trainguard.report.formats import RunAccount
from trainguard.report.json import check_apart
from trainguard.report.progress import showing
from trainguard.report.run_report import baseline_as_rows, render_report
from trainguard.report.run_summary import summarize_run
from trainguard.report.text import render_rows
from trainguard.subjects.log import Log
from trainguard.subjects.loop import Script


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest:
    """What the command line asks for."""

    subject: Log
    settings: Settings = field(default_factory=Settings)
    formats: tuple[tuple[str, Path | None], ...] = ()
    baseline: Baseline = field(default_factory=Baseline)
    verbose: bool = False
    command: str = ""


def diagnose_logs(
    paths: Annotated[
        list[str], typer.Argument(help="Logs of a run that is over, or folders.", metavar="LOGS")
    ],
    column: Annotated[
        Words, typer.Option(help="What a column is: loss=train/nll.", metavar="ROLE=NAME")
    ] = None,
    falls: FallsOption = None,
    classes: Annotated[
        int | None, typer.Option(help="Say how many classes the loss is over.", metavar="N")
    ] = None,
    peak: Annotated[
        float | None, typer.Option(help="Fail if a rate is higher.", metavar="RATE")
    ] = None,
    json: JsonOption = None,
    format: FormatOption = None,  # noqa: A002 it is the name of the option
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the curves.", metavar="FILE")
    ] = None,
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    allow: AllowOption = None,
    strict: StrictOption = False,
    baseline: BaselineOption = None,
    update_baseline: UpdateOption = False,
    verbose: VerboseOption = False,
) -> None:
    """
    Judge runs that are over by their logs: nothing is run.

    Exits with 0 where nothing is found, 1 with findings, 2 where there was nothing to judge, 4
    where trainguard failed, and 130 after Ctrl-C.
    """
    with ending():
        if html is not None:
            check_installed("--html", "jinja2")
        asked = {"json": check_file("--json", json), "html": check_file("--html", html)}
        files = [(name, path) for name, path in asked.items() if path is not None]
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
            formats=(*split_formats(format), *files),
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
        [*(path for _, path in order.formats), held.path],
        [path for path in map(Path, paths) if is_there(path)],
    )
    with ExitStack() as stack:
        read = [0]
        stack.enter_context(
            showing(lambda seconds: f"{how_far()}{read[0]:,} rows, {seconds:.0f} s")
        )
        traces = read_logs(subject, partial(_count, read))
    judged = [(trace, _judge(order, trace)) for trace in traces]
    runs = [_account(order, trace, tuple(map(held.settle, verdicts))) for trace, verdicts in judged]
    written = write_baseline(held, sys.stderr)
    if rows := baseline_as_rows(held):
        runs[-1] = replace(runs[-1], text=f"{runs[-1].text}\n\n{render_rows([], rows)}")
    written &= Audience(order.formats, sys.stdout, sys.stderr).tell(runs)
    if any(verdict.fails for run in runs for verdict in run.verdicts):
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


def _account(
    order: DiagnoseRequest, trace: Trace[Any], verdicts: tuple[Verdict, ...]
) -> RunAccount:
    """Return what one run came to."""
    account = RunAccount(
        subject=order.subject,
        verdicts=verdicts,
        told=summarize_run(trace),
        trace=trace,
        text="",
        root=Path.cwd(),
    )
    strict, by_name = order.settings.strict, order.verbose
    text = render_report(verdicts, account.headline, account.rows, strict=strict, by_name=by_name)
    return replace(account, text=text)
