"""Lines of a text, whatever its encoding and however long: never more than one of them is held."""

from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from trainguard.logs.reading import open_log

LONGEST = 1 << 16  # characters of a line; the rest of a longer one is another line
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


def encoding_of(start: bytes) -> str:
    """Return the encoding that the first bytes of a file tell."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def lines_of(file: Path, *, whole: bool = False) -> Iterator[str]:
    """
    Yield the lines of a file, split at line feeds and at returns, as a terminal shows them.

    With whole, a last line that does not end is left out: half a number is another number.
    """
    with open_log(file) as raw:
        encoding = encoding_of(raw.read(3))
        raw.seek(0)
        opened = TextIOWrapper(raw, encoding, "replace", newline=None)
        before = ""
        while line := opened.readline(LONGEST):
            if before:
                yield before
            before = line
        if before and not (whole and not before.endswith("\n")):
            yield before
