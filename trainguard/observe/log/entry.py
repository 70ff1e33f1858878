"""The way in: the runs that some logs hold, each as a Trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.observe.log.find import Source, find_sources, is_there
from trainguard.observe.log.run import LoggedRun, read_runs
from trainguard.observe.log.trace import trace_of
from trainguard.subjects.log import Log

_SHOWN = 12  # names of columns


def read_logs(subject: Log, told: Callable[[int], None] = lambda _: None) -> list[Trace[Any]]:
    """Return a trace of each run that the logs hold; raises where there is none."""
    paths = [_resolve(path, subject) for path in _paths(subject)]
    sources = find_sources(paths)
    chosen = dict(subject.columns)
    traces = [_read_trace(s.path) for s in sources if s.format == "trace"]
    logs = [source for source in sources if source.format != "trace"]
    traces = _with_steps(traces, sources, logs)
    try:
        runs = list(read_runs(logs, chosen, told))
    except OSError as error:
        raise DeclarationError(f"{error.filename} cannot be read: {error.strerror}.") from None
    _check_columns(chosen, runs)
    judged = [run for run in runs if run.main is not None or run.lost]
    if not judged and not traces:
        raise DeclarationError(_explain_nothing(logs, runs))
    names = _name_runs(judged, subject.name)
    own = zip(judged, names, strict=True)
    return [*traces, *(trace_of(run, name, subject.promises) for run, name in own)]


def read_log(subject: Log) -> Trace[Any]:
    """Return the trace of the one run that a declared log holds; raises where there are several."""
    try:
        traces = read_logs(subject)
    except DeclarationError as fault:
        raise SubjectError(str(fault)) from None
    if len(traces) > 1:
        raise SubjectError(
            f"`{subject.name}` holds {len(traces)} runs", "Declare each by its own files."
        )
    return traces[0]


def _paths(subject: Log) -> tuple[str | Path, ...]:
    """Return the paths of a subject."""
    return tuple(subject.paths) if not isinstance(subject.paths, str | Path) else (subject.paths,)


def _resolve(path: str | Path, subject: Log) -> Path:
    """Return where a path leads: from here, or else from the folder of the declaration."""
    here, there = Path(path), Path(subject.file).parent / path
    return there if subject.file and not is_there(here) and is_there(there) else here


def _read_trace(path: Path) -> Trace[Any]:
    """Read a trace of ours."""
    try:
        return Trace.from_text(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DeclarationError(
            f"{path} is no whole trace of this version of trainguard: {str(error)[:60]}."
        ) from None


def _with_steps(
    traces: list[Trace[Any]], sources: list[Source], logs: list[Source]
) -> list[Trace[Any]]:
    """Return the traces that have a step; raises where there is nothing else to be judged."""
    told = [trace for trace in traces if any(isinstance(event, Step) for event in trace)]
    if traces and not told and not logs:
        raise DeclarationError(
            f"{sources[0].path} is a trace without a training step. Give one of a run that made"
            " some steps."
        )
    return told


def _check_columns(chosen: dict[str, str], runs: list[LoggedRun]) -> None:
    """Raise for a column that was named and is not there."""
    for role, name in chosen.items():
        if role in ("step", "epoch"):
            told = any(run.unit in (role, "step") for run in runs)
        else:
            full = {each for run in runs for each in run.names}
            told = role == "time" or any(f"/{each}".endswith(f"/{name}") for each in full)
        if not told:
            raise DeclarationError(f"No log has a column {name!r}.{_list_names(runs)}")


def _list_names(runs: list[LoggedRun]) -> str:
    """Return what columns there are, as far as they fit."""
    names = [name for run in runs for name in run.names]
    more = ", ..." if len(names) > _SHOWN else ""
    return f" Columns: {', '.join(names[:_SHOWN])}{more}." if names else " It has no columns."


def _explain_nothing(logs: list[Source], runs: list[LoggedRun]) -> str:
    """Say why no log has anything that can be judged."""
    first = logs[0].path
    more = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
    if not any(run.names for run in runs):
        return f"{first}{more} says no number by name. Give a log with a loss, rate or norm in it."
    return (
        f"{first}{more} has no column that is known to be a loss, rate or norm."
        f"{_list_names(runs)} Say which: --column loss=NAME."
    )


def _name_runs(runs: list[LoggedRun], name: str) -> list[str]:
    """Return what reports call each run: its file, its folder where it has several files."""
    if len(runs) == 1:
        return [name]
    return [
        str(run.sources[0].path) if len(run.sources) == 1 else run.sources[0].folder or name
        for run in runs
    ]
