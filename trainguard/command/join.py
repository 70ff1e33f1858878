"""`trainguard join`: the traces that processes of one run have written, judged together."""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from trainguard.command.exit import CLEAN, FOUND, USAGE, ending
from trainguard.command.options import (
    SILENCE,
    AllowOption,
    BaselineOption,
    FormatOption,
    IgnoreOption,
    SelectOption,
    StrictOption,
    UpdateOption,
    VerboseOption,
    name_only,
    read_excuses,
    read_settings,
    split_formats,
)
from trainguard.command.output import Audience, write_baseline
from trainguard.command.ranks import Others
from trainguard.command.together import ranks_as_rows
from trainguard.core.errors import DeclarationError
from trainguard.events.joined import digest, join, share_columns
from trainguard.events.trace import Trace
from trainguard.judging.baseline import open_baseline
from trainguard.judging.judge import judge_run
from trainguard.report.formats import RunAccount
from trainguard.report.run_report import baseline_as_rows, render_report
from trainguard.report.run_summary import summarize_run
from trainguard.subjects.loop import Script

_REMEDY = "`torchrun ... -m trainguard run --trace FILE` writes one of each process."


@dataclass(slots=True)
class Found:
    """The digests in a folder by rank; of which run, of how many processes; what is no trace."""

    digests: dict[int, Trace[Any]] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    of: tuple[str, int] | None = None
    unread: list[str] = field(default_factory=list)
    columns: dict[Any, Any] = field(default_factory=dict)


def join_traces(
    folder: Annotated[
        Path, typer.Argument(help="Where the traces of one run are.", metavar="FOLDER")
    ],
    format: FormatOption = None,  # noqa: A002 it is the name of the option
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    allow: AllowOption = None,
    strict: StrictOption = False,
    baseline: BaselineOption = None,
    update_baseline: UpdateOption = False,
    verbose: VerboseOption = False,
) -> None:
    """
    Judge the processes of one run together, by their traces.

    Exits with 0 where nothing is found, 1 with findings, 2 where there was nothing to judge, 4
    where trainguard failed, and 130 after Ctrl-C.
    """
    with ending():
        settings = read_settings(select, ignore, strict, read=True)
        excuses = read_excuses(allow)
        held = open_baseline(baseline, update_baseline)
        found = _read(folder)
        assert found.of is not None
        world = found.of[1]
        absent = set(range(world)) - set(found.files)
        others = Others(missing=dict.fromkeys(sorted(absent), "no trace of it is here"))
        joined = join([found.digests[rank] for rank in sorted(found.digests)], others.missing)
        run = name_only(Script(joined.subject, name=joined.subject, allow=excuses, ranks=world))
        command = shlex.join(["trainguard", *sys.argv[1:]])
        verdicts = judge_run(run, joined, settings, command, SILENCE, joined=True)
        verdicts = tuple(map(held.settle, [*map(held.hold, verdicts)]))
        rows = [*ranks_as_rows(others, world), *baseline_as_rows(held)]
        rows += [("unread", name) for name in found.unread]
        number = len(found.files)
        head = f"{joined.subject}: {number} {'trace' if number == 1 else 'traces'} in {folder}"
        text = render_report(verdicts, head, rows, strict=settings.strict, by_name=verbose)
        account = RunAccount(
            subject=run,
            verdicts=verdicts,
            told=summarize_run(joined),
            trace=joined,
            text=text,
            root=Path.cwd(),
        )
        written = write_baseline(held, sys.stderr)
        written &= Audience(split_formats(format), sys.stdout, sys.stderr).tell([account])
        fails = any(verdict.fails for verdict in verdicts)
        raise typer.Exit(FOUND if fails else CLEAN if written else USAGE)


def _read(folder: Path) -> Found:
    """Read all traces of a folder; raises where they are not those of one run."""
    if not folder.is_dir():
        raise DeclarationError(f"{folder} is no folder. Give the one that the traces are in.")
    found = Found()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        try:
            trace: Trace[Any] = Trace.from_text(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no text, no trace, or one of another version
            found.unread.append(f"{file.name} is no trace of this version of trainguard")
            continue
        _take(found, file.name, trace)
    if not found.digests:
        raise DeclarationError(f"{folder} has no trace of one of several processes. {_REMEDY}")
    return found


def _take(found: Found, name: str, trace: Trace[Any]) -> None:
    """Take a trace in; raises for one of another run, and for a second one of the same process."""
    rank, world, run = (trace.conditions.get(key) for key in ("rank", "world", "run"))
    if not isinstance(rank, int) or not isinstance(world, int):
        found.unread.append(f"{name} is of a run of one process")
        return
    of = str(run), world
    first = next(iter(found.files.values()), "")
    if found.of not in (None, of):
        raise DeclarationError(
            f"{first} and {name} are traces of different runs. Give a folder with those of one."
        )
    if rank in found.files:
        raise DeclarationError(
            f"{found.files[rank]} and {name} are both of rank {rank}. Keep one of them."
        )
    found.of = of
    found.files[rank] = name
    found.digests[rank] = share_columns(digest(trace, rank, world), found.columns)
