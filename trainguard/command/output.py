"""What a command says and writes, as far as somebody listens and a disk has room."""

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from trainguard.core.files import write_whole
from trainguard.judging.baseline import Baseline
from trainguard.report.formats import RunAccount
from trainguard.report.formats.table import FORMATS, write_accounts, write_told

_WHOLE = {"json", "sarif", "junit", "markdown", "html"}  # documents, that nothing may stand before
_COLOURS: Final = {
    r"(?m)^[a-z]+(?:_[a-z]+)+(?=: \D)": "bold red",  # the name of what is broken
    r"(?m)^  [a-z]+(?= {2,})": "dim",  # the label of a row
    r"\b\d+ broken\b": "bold red",
    r"\b\d+ passed\b": "green",
}


def say(text: str, stream: TextIO, err: TextIO | None = None) -> bool:
    """
    Write a text and a line break; say whether they got there, on `err` also why they did not.

    A reader that has left, such as `head`, knows why.
    """
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (AttributeError, OSError, ValueError) as error:  # none, gone, closed
        forget_unwritten(stream)
        if err is not None and not isinstance(error, BrokenPipeError):
            why = getattr(error, "strerror", None) or "the stream is closed"
            say(f"The report could not be written: {why}.", err)
        return False
    return True


def forget_unwritten(stream: TextIO) -> None:
    """Let a stream lead nowhere, so that Python does not end with what it could not write."""
    with suppress(AttributeError, OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, stream.fileno())
        finally:
            os.close(nothing)


def paint(text: str, stream: TextIO) -> str:
    """Return a report in colours where a terminal shows it that has some."""
    with suppress(AttributeError, ValueError):  # no stream, or closed
        if stream.isatty():
            from rich.console import Console  # late: most reports are read by no terminal
            from rich.text import Text

            console, told = Console(file=stream, highlight=False), Text(text)
            for pattern, style in _COLOURS.items():
                told.highlight_regex(pattern, style)
            with console.capture() as shown:
                console.print(told, soft_wrap=True)
            return shown.get().removesuffix("\n")
    return text


def write_file(path: Path, content: Callable[[], str | bytes], err: TextIO) -> bool:
    """Write a file; where that fails, say so, so that the report can follow all the same."""
    try:
        write_whole(path, content())
    except OSError as error:
        say(f"{path} could not be written: {error.strerror}.", err)
        return False
    return True


def write_baseline(baseline: Baseline, err: TextIO) -> bool:
    """Write a baseline where it is new or renewed; say whether nothing went wrong."""
    if baseline.path is None or not baseline.writes:
        return True
    return write_file(baseline.path, baseline.to_text, err)


@dataclass(frozen=True)
class Audience:
    """
    Who is told what runs came to: the formats asked for with their files, and a terminal.

    files: whether another file already has the account.
    """

    formats: tuple[tuple[str, Path | None], ...]
    out: TextIO
    err: TextIO
    files: bool = False

    def tell(self, accounts: Sequence[RunAccount]) -> bool:
        """Write and print the report in the formats asked for; say whether somebody can read it."""
        written = said = True
        for name, path in self.formats:
            if path is not None:
                told = [*map(FORMATS[name].tell, accounts)]
                written &= write_file(path, partial(write_told, name, told), self.err)
        printed = [name for name, path in self.formats if path is None] or ["text"]
        if not self.formats and os.environ.get("GITHUB_ACTIONS") == "true":
            printed += ["github"]
        for name in printed:
            text = write_accounts(name, accounts)
            if text:
                said &= say(paint(text, self.out) if name == "text" else text, self.out, self.err)
        # A file is an account too; with none, nobody could tell this run from one that passed.
        return written and (said or self.files or any(path for _, path in self.formats))


def give_way(formats: Sequence[tuple[str, Path | None]]) -> None:
    """Let what the script prints go to stderr, where a report for programs is printed to stdout."""
    if any(path is None and name in _WHOLE for name, path in formats):
        with suppress(OSError, ValueError, AttributeError):  # no files, or closed
            sys.stdout.flush()
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


@contextmanager
def keep_stream(stream: TextIO | None) -> Iterator[TextIO]:
    """Yield a stream to where this one leads now, whatever the script does to it."""
    if stream is None:  # closed before Python started: nobody reads what is said there
        nothing = io.StringIO()
        nothing.close()
        yield nothing
        return
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):  # closed, or not a file
        yield stream
        return
    encoding = stream.encoding or "utf-8"
    kept = os.fdopen(descriptor, "w", encoding=encoding, errors="backslashreplace")
    try:
        yield kept
    finally:
        with suppress(OSError):
            kept.close()


def flush() -> None:
    """Let what the script printed come before the report."""
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        stream: Any = getattr(sys, name, None)  # a script may delete it
        with suppress(Exception):  # None, closed, or one of the script's own
            try:
                stream.flush()
            except OSError:  # the device is full, the reader gone
                forget_unwritten(stream)
