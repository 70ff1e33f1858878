"""`trainguard init`: a guard file for a script, of what a few steps of it were seen to do."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainguard.command.exit import CLEAN, FAILED, USAGE, ending, seconds
from trainguard.command.memory.target import load_file
from trainguard.command.options import Words, name_only
from trainguard.command.output import say, write_file
from trainguard.command.project_files import find_project_files
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.files import check_writable
from trainguard.core.settings import Settings
from trainguard.events.component import Component
from trainguard.events.loop import Step
from trainguard.events.trace import Sample, Trace
from trainguard.judging.judge import Observations, applicable, check_steps, devices_present, verdict
from trainguard.judging.promises import broken_with, promises_of
from trainguard.report.guard_file import guard_name, names_of, render_guard
from trainguard.report.progress import showing
from trainguard.report.run_summary import summarize_run
from trainguard.report.text import render_cause
from trainguard.subjects.loader import Loader
from trainguard.subjects.loop import Script
from trainguard.subjects.loss import Loss

_STEPS: Final = 50  # that are run where nothing else is asked for: most invariants need fewer
_LEAST_FALL: Final = 0.1  # a smaller share of the loss may be chance, with another seed
_NAMED: Final = 8  # scripts, where there are several
_ASIDE: Final = re.compile(r"/(?:\.|tests?[_/.]|guard_|conftest|setup\.py|[^/]*venv|site-packages)")
_BEGINS: Final = re.compile(r"^if __name__ ==", re.M)
_TRAINS: Final = re.compile(r"\.backward\(|\.fit\(|Trainer\(")


def write_guards(
    script: Annotated[
        str,
        typer.Argument(
            help="The script that trains, a folder with it, or with -m its module.",
            metavar="SCRIPT",
        ),
    ],
    args: Annotated[
        Words,
        typer.Argument(
            help="The command line of the script, its options included.", metavar="ARGS"
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python.")] = False,
    steps: Annotated[
        int, typer.Option(min=1, help="Run so many optimizer steps: 50.", metavar="N")
    ] = _STEPS,
    timeout: Annotated[
        float, typer.Option(help="Seconds that this may take: 600.", metavar="SECONDS")
    ] = 600.0,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the settings and the workflow too, where not there."),
    ] = False,
) -> None:
    """
    Write a guard file for a script, from a few steps of it.

    It declares the script itself, and the losses, models, schedules and loaders of your own that it
    used. It writes guard_<script>.py into the working directory; settings for pyproject.toml and a
    workflow of GitHub are printed, and with --write written as well. Nothing that is there is
    replaced. Exits with 0, with 2 where it cannot be done, 3 where the script failed, 4 where
    trainguard did, and 130 after Ctrl-C.
    """
    with ending():
        seconds(timeout)
        project = find_project_files()
        if not module and Path(script).is_dir():
            script = _find_script(Path(script))
        name, folder = (script, "") if module else _as_module(script) or ("", "")
        given: dict[str, Any] = {"args": tuple(args or ()), "steps": steps, "timeout": timeout}
        if name:
            given |= {"module": True, "name": name, "directory": folder or None}
        subject = _declare(name or script, given)
        file = check_writable("The guard file", Path(f"guard_{guard_name(subject)}.py"))
        there = f"{file.name} is there already."
        if file.exists() and not write:
            raise DeclarationError(f"{there} Move it away, or edit it instead.")
        told = [there] if file.exists() else _write_guard(file, subject, _observe(subject))
        options = ["-m"] * module + ["--steps", str(steps)] * (steps != _STEPS)
        command = shlex.join([*options, script, *(args or ())])
        told += ["", project.write() if write else project.offer(command)]
        well = say("\n".join(told).rstrip(), sys.stdout, sys.stderr)
        raise typer.Exit(CLEAN if well else USAGE)


def _write_guard(file: Path, subject: Script, trace: Trace[Any]) -> list[str]:
    """Write the guard of a script; return lines on what it used, and what is not declared."""
    seen = [
        replace(event, source=os.path.relpath(event.source).replace(os.sep, "/"))
        for event in trace
        if isinstance(event, Component)
    ]
    kept, folder = _kept(subject, trace), _import_folder(subject, seen)
    write = partial(render_guard, subject, summarize_run(trace), kept)
    written = write_file(file, lambda: write(seen, folder), sys.stderr)
    if written:
        excused, obstacles = _try_declared(file)
        named = zip(names_of(seen, subject), seen, strict=True)
        seen = [replace(s, obstacle=obstacles.get(n, s.obstacle)) for n, s in named]
        written = write_file(file, lambda: write(seen, folder, excused), sys.stderr)
    if not written:
        raise typer.Exit(USAGE)
    told = f"{file.name} is written: run `pytest --trainguard {file.name}`."
    return [told, *_tell_components(seen)]


def _find_script(folder: Path) -> str:
    """Return the one script in a folder that trains; raises where there is none, or several."""
    files = [
        file
        for file in sorted(folder.rglob("*.py"))
        if not _ASIDE.search(f"/{file.relative_to(folder).as_posix()}")
    ]
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in files}
    begun = [f for f, text in texts.items() if _BEGINS.search(text) or f.stem == "__main__"]
    found = [file for file in begun if _TRAINS.search(texts[file])] or begun
    found = found or [file for file, text in texts.items() if _TRAINS.search(text)]
    if len(found) == 1:
        return str(found[0])
    named = ", ".join(str(file) for file in found[:_NAMED])
    told = f"{len(found)} scripts that may train: {named}" if found else "no script that trains"
    raise DeclarationError(f"{folder} has {told}. Give the one that does.")


def _as_module(script: str) -> tuple[str, str] | None:
    """Return a script that only `python -m` runs as its module, and where; None for others."""
    path = Path(os.path.relpath(script))
    if ".." in path.parts or not path.is_file():
        return None
    packages = [folder for folder in path.parents if (folder / "__init__.py").is_file()]
    top = packages[-1] if packages else path.parent
    own = rf"\.|{top.name}\b" if packages else r"\."
    text = path.read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"^\s*(from|import) +({own})", text, re.M):
        return None
    # Installed, or named by PYTHONPATH, it is found from here.
    root = Path() if not packages or find_spec(top.name) is not None else top.parent
    name = ".".join(path.with_suffix("").relative_to(top.parent if packages else root).parts)
    return name.removesuffix(".__main__"), "" if root == Path() else root.as_posix()


def _declare(script: str, given: dict[str, Any]) -> Script:
    """Return the script as its guard will declare it; raises for what is none."""
    path = Path(script)
    if "module" not in given and not path.is_file():
        raise DeclarationError(f"There is no script {script}. Give the path of one.")
    shown = os.path.relpath(path).replace(os.sep, "/") if path.is_absolute() else script
    # Not looked for beside the file that seems to declare it, which is one of a library.
    return name_only(Script(shown, **{"name": path.name, **given}))


def _import_folder(subject: Script, seen: Sequence[Component]) -> str:
    """Return the script's folder, where what it imports is not found from this one."""
    if subject.module:
        return str(subject.directory or "")
    tops = {each.module.partition(".")[0] for each in seen if not each.obstacle}
    parent = Path(os.path.relpath(subject.path)).parent
    beside = any((parent / top).is_dir() or (parent / f"{top}.py").is_file() for top in tops)
    return parent.as_posix() if parent != Path() and beside else ""


def _observe(subject: Script) -> Trace[Any]:
    """Run a script as its guard will, and return what was recorded, its components too."""
    from trainguard.observe.loop.run_processes import observe_script  # late: torch

    try:
        with showing(lambda passed: f"running {subject.name}, {passed:.0f} s"):
            # Without probes: what they would call with other inputs is not what the training does.
            trace = observe_script(subject, Settings(), probe=False, components=True)
            check_steps(subject, trace)
    except SubjectError as fault:
        parts = f"{fault.sentence}.", fault.remedy, render_cause(fault)
        say("\n".join(filter(None, parts)), sys.stderr)
        raise typer.Exit(FAILED if fault.__cause__ is not None else USAGE) from None
    return trace


def _try_declared(file: Path) -> tuple[set[str], dict[str, str]]:
    """
    Try what was declared: return what is to be excused, and what cannot be declared, with why.

    Excused are losses whose gradient only explodes at a vector of zeros, which no run has met.
    """
    excused, obstacles = set[str](), dict[str, str]()
    with suppress(Exception), redirect_stdout(StringIO()):  # of the user's code, and told by pytest
        for name, subject in vars(load_file(file)).items():
            if isinstance(subject, Loss) and _explodes_at_zero_vectors(subject):
                excused.add(name)
            elif isinstance(subject, Loader) and (why := _find_no_loader(subject)):
                obstacles[name] = why
    return excused, obstacles


def _explodes_at_zero_vectors(loss: Loss) -> bool:
    """Say whether the gradient of a loss is bounded but at vectors of zeros."""
    settings = Settings(select=("loss.gradient_is_bounded",))
    seen = Observations(settings)
    chosen = applicable(loss, settings, devices_present())
    found = [f for made, config in chosen for f in verdict(loss, made, config, seen).breaches]
    return bool(found) and all(isinstance(f.event, Sample) and f.event.at_zeros for f in found)


def _find_no_loader(loader: Loader) -> str:
    """Say why loaders cannot be made without the script around them; empty where they can."""
    from trainguard.observe.loader.observer import try_to_make  # late: torch

    try:
        try_to_make(loader, Settings())
    except SubjectError as fault:
        return fault.sentence
    return ""


def _kept(subject: Script, trace: Trace[Any]) -> dict[str, Any]:
    """Return the promises that the run was seen to keep."""
    kept: dict[str, Any] = {}
    before = broken_with(str(subject.path), {}, trace)
    for promise in promises_of([event for event in trace if isinstance(event, Step)]):
        falls = promise.get("falls", _LEAST_FALL)
        if falls >= _LEAST_FALL and broken_with(str(subject.path), promise, trace) <= before:
            kept |= promise
    return kept


def _tell_components(seen: Sequence[Component]) -> Iterator[str]:
    """Yield what is declared beside the script, and what is not."""
    for made in seen:
        told = f"not declared: {made.obstacle}" if made.obstacle else "declared, with guesses"
        yield f"  {made.kind:<9} {made.name} ({made.source}): {told}"
