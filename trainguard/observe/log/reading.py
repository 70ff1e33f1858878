"""How far the log that is being read has been read, for whoever shows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

_WIDTH = 20  # characters of the bar
_NAME = 30
_open: list[tuple[BufferedReader, Path, int]] = []


@contextmanager
def open_log(file: Path) -> Iterator[BufferedReader]:
    """Open a log for reading; how_far() tells of it meanwhile."""
    with file.open("rb") as opened:
        own = (opened, file, file.stat().st_size)
        _open.append(own)
        try:
            yield opened
        finally:
            _open.remove(own)


def how_far() -> str:
    """Draw how far the log that was opened last has been read; nothing where none is open."""
    try:
        opened, file, size = _open[-1]
        share = min(1.0, opened.raw.tell() / max(1, size))
    except (IndexError, ValueError, OSError):  # closed meanwhile, or no file that has places
        return ""
    done = int(share * _WIDTH)
    return f"[{'#' * done}{'.' * (_WIDTH - done)}] {share:.0%} of {file.name[-_NAME:]}, "
