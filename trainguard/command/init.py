"""`trainguard init`: a guard file for a script, of what a few steps of it were seen to do."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainguard.command.exit import CLEAN, FAILED, USAGE, ending, seconds
from trainguard.command.options import Words
from trainguard.command.output import say, write_file
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.files import check_writable
from trainguard.core.settings import Settings
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.judge import Observations, applicable, check_steps
from trainguard.judging.promises import broken_with, promises_of
from trainguard.judging.verdict import Config
from trainguard.report.guard_file import SETTINGS, guard_name, render_guard, render_workflow
from trainguard.report.progress import showing
from trainguard.report.run_summary import summarize_run
from trainguard.report.text import render_cause
from trainguard.subjects.loop import Script

_STEPS: Final = 50  # that are run where nothing else is asked for: most invariants need fewer
_LEAST_FALL: Final = 0.1  # a smaller share of the loss may be chance, with another seed


def write_guards(
    script: Annotated[str, typer.Argument(help="The script that trains.", metavar="SCRIPT")],
    args: Annotated[
        Words, typer.Argument(help="Its own command line, options included.", metavar="ARGS")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Run so many optimizer steps: 50.", metavar="N")
    ] = _STEPS,
    timeout: Annotated[
        float, typer.Option(help="Seconds that this may take: 600.", metavar="SECONDS")
    ] = 600.0,
) -> None:
    """
    Run a few steps of a script, and write a guard file that declares what was seen.

    It writes guard_<script>.py into the working directory and no other file; settings and a
    workflow are printed. Exits with 0, with 2 where it cannot be done, 3 where the script failed,
    4 where trainguard did, and 130 after Ctrl-C.
    """
    with ending():
        seconds(timeout)
        subject = _declare(script, tuple(args or ()), steps, timeout)
        file = _guard_file(script)
        try:
            with showing(lambda passed: f"running {subject.name}, {passed:.0f} s"):
                trace = _observe(subject)
                check_steps(subject, trace)
        except SubjectError as fault:
            parts = f"{fault.sentence}.", fault.remedy, render_cause(fault)
            say("\n".join(filter(None, parts)), sys.stderr)
            raise typer.Exit(FAILED if fault.__cause__ is not None else USAGE) from None
        text = render_guard(subject, summarize_run(trace), _kept(subject, trace))
        if not write_file(file, lambda: text, sys.stderr):
            raise typer.Exit(USAGE)
        raise typer.Exit(CLEAN if say(_account(file, subject), sys.stdout, sys.stderr) else USAGE)


def _declare(script: str, args: tuple[str, ...], steps: int, timeout: float) -> Script:
    """Return the script as its guard will declare it; raises for what is none."""
    path = Path(script)
    if path.is_dir():
        raise DeclarationError(f"{script} is a folder. Give a script that trains.")
    if not path.is_file():
        raise DeclarationError(f"There is no script {script}. Give the path of one.")
    shown = os.path.relpath(path).replace(os.sep, "/") if path.is_absolute() else script
    return Script(shown, args=args, steps=steps, timeout=timeout, name=path.name)


def _guard_file(script: str) -> Path:
    """Return the file that is written; raises where there is one of this name."""
    file = check_writable("The guard file", Path(f"guard_{guard_name(script)}.py"))
    if file.exists():
        raise DeclarationError(f"{file.name} is there already. Move it away, or edit it instead.")
    return file


def _observe(subject: Script) -> Trace[Any]:
    """Run a script as its guard will, and return what was recorded."""
    settings = Settings()
    first = next(m for m, _ in applicable(subject, settings, ()) if m.probe == "run")
    return Observations(settings).trace(subject, Config(), first)


def _kept(subject: Script, trace: Trace[Any]) -> dict[str, Any]:
    """Return the promises that the run was seen to keep."""
    kept: dict[str, Any] = {}
    before = broken_with(str(subject.path), {}, trace)
    for promise in promises_of([event for event in trace if isinstance(event, Step)]):
        falls = promise.get("falls", _LEAST_FALL)
        if falls >= _LEAST_FALL and broken_with(str(subject.path), promise, trace) <= before:
            kept |= promise
    return kept


def _account(file: Path, subject: Script) -> str:
    """Say what was written, and what may be put elsewhere."""
    return "\n".join(
        [
            f"{file.name} is written: run `pytest --trainguard {file.name}`.",
            "",
            "For pyproject.toml, where other settings are wanted (docs/adopt.md has them all):",
            "",
            SETTINGS,
            "For a job of GitHub Actions that has installed the project:",
            "",
            render_workflow(subject),
        ]
    ).rstrip()
