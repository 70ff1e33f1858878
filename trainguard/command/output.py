"""What a command says and writes, as far as somebody listens and a disk has room."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from trainguard.core.files import write_whole


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
            why = getattr(error, "strerror", None) or error
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


def write_file(path: Path, content: Callable[[], str | bytes], err: TextIO) -> bool:
    """Write a file; where that fails, say so, so that the report can follow all the same."""
    try:
        write_whole(path, content())
    except OSError as error:
        say(f"{path} could not be written: {error.strerror}.", err)
        return False
    return True
