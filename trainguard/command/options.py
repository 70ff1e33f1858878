"""Options that several commands have alike: what is judged, what is excused, what is written."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from trainguard.core.catalogue import catalogue, check_globs
from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.files import check_installed, check_writable
from trainguard.core.settings import Settings, find_settings
from trainguard.report.formats.table import FORMATS, split_format
from trainguard.subjects.subject import Subject


def complete_format(begun: str) -> list[str]:
    """Return the formats whose names begin so, for the completion of a shell."""
    return [name for name in FORMATS if name.startswith(begun)]


Words = list[str] | None
FormatOption = Annotated[
    Words,
    typer.Option(
        help=f"Report as {', '.join(FORMATS)}.",
        metavar="FORMAT[=FILE]",
        autocompletion=complete_format,
    ),
]
SelectOption = Annotated[Words, typer.Option(help="Judge only these invariants.", metavar="GLOBS")]
IgnoreOption = Annotated[
    Words, typer.Option(help="Judge all invariants but these.", metavar="GLOBS")
]
AllowOption = Annotated[
    Words, typer.Option(help="Excuse one; fails once it is not needed.", metavar="NAME=REASON")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Let notes fail too.")]
BaselineOption = Annotated[
    Path | None, typer.Option(help="Fail only for what is not in this file.", metavar="FILE")
]
UpdateOption = Annotated[
    bool, typer.Option("--update-baseline", help="Write that file anew, with what is found.")
]
JsonOption = Annotated[
    Path | None, typer.Option(help="Write the findings to this file.", metavar="FILE")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Name what had nothing to judge.")
]
FallsOption = Annotated[
    float | None, typer.Option(help="Fail unless the loss falls by this share.", metavar="SHARE")
]
SILENCE: Final = '--allow NAME="<reason>"'
_Given = TypeVar("_Given", bound=Subject)


def name_only(subject: _Given) -> _Given:
    """Return a subject of a command line, which no file declares: it is told of by its name."""
    object.__setattr__(subject, "file", "")
    return subject


def file_of_module(name: str) -> Path:
    """
    Return the file that `python -m name` runs, which is not imported for that.

    Raises DeclarationError where there is none below the working directory, src, or what is
    imported from.
    """
    parts = name.split(".")
    for folder in (Path.cwd(), Path("src").absolute(), *map(Path, filter(None, sys.path))):
        path = folder.joinpath(*parts)
        for file in (path / "__main__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
    near = [str(p.with_suffix("")).replace(os.sep, ".") for p in Path(*parts[:-1]).glob("*.py")]
    raise DeclarationError(f"There is no module {name!r} to run.{did_you_mean(name, near)}")


def split_globs(words: Words) -> tuple[str, ...]:
    """Return the globs of an option that may be repeated and may hold several at once."""
    return tuple(glob for word in words or () for glob in word.replace(",", " ").split())


def split_columns(words: Words) -> dict[str, str]:
    """Return what columns were said to be."""
    columns = dict[str, str]()
    for word in words or ():
        role, equals, name = word.partition("=")
        if not equals or not name:
            raise DeclarationError(f"--column {word} names no column. Write ROLE=NAME: loss=nll.")
        if role in columns or name in columns.values():
            raise DeclarationError(
                f"--column {word} names a column twice. Give each role one column of its own."
            )
        columns[role] = name
    return columns


def read_excuses(words: Words) -> dict[str, str]:
    """Return what is excused, and why."""
    excuses = {}
    for word in words or ():
        name, _, reason = word.partition("=")
        bare = name.removeprefix("loop.").removeprefix("log.").removeprefix("ranks.")
        excuses[bare] = reason
    return excuses


def read_settings(select: Words, ignore: Words, strict: bool, read: bool) -> Settings:
    """Read the nearest `[tool.trainguard]`, and what the command line puts over it."""
    given: dict[str, Any] = {
        "select": split_globs(select),
        "ignore": split_globs(ignore),
        "strict": strict,
    }
    given = {name: value for name, value in given.items() if value}
    base = find_settings(Path.cwd()) if read else Settings()
    settings = base.with_values("The command line", given)
    check_globs("select", settings.select)
    check_globs("ignore", settings.ignore)
    return settings


def complete_name(begun: str) -> list[str]:
    """Return the invariants whose names begin so, for the completion of a shell."""
    return [made.name for made in catalogue() if made.name.startswith(begun)]


def check_file(option: str, path: Path | None) -> Path | None:
    """Return where a file is to be written, once it is sure that it can be."""
    return None if path is None else check_writable(option, path)


def split_formats(words: Words) -> tuple[tuple[str, Path | None], ...]:
    """Return the formats asked for, with their files; raises for what cannot be written."""
    asked = [split_format("--format", word) for word in words or ()]
    if any(name == "html" for name, _ in asked):
        check_installed("--format html", "jinja2")
    return tuple(
        (name, check_writable("--format", Path(file)) if file else None) for name, file in asked
    )
