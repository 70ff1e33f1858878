"""Lines of a text, whatever its encodings and however long: never more than one of them is held."""

from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from trainguard.observe.log.reading import open_log

LONGEST = 1 << 16  # characters of a line; the rest of a longer one is another line
_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\xef\xbb\xbf": "utf-8"}
_WIDE = 0.25  # of the bytes of UTF-16 are null, of digits and English words a half
_STRAY = 0.05
_PLAIN = frozenset(b"\t\n\r\b\f\x1b") | frozenset(range(32, 127))
_TEXT = 0.8  # of the bytes of a log are plain


def encoding_of(start: bytes) -> str:
    """Return the encoding that the first bytes of a file tell."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def text_of(content: bytes, encoding: str) -> str:
    """Return the text of some bytes whose lines may be of two encodings: UTF-8 and UTF-16."""
    return "".join(_decode(line, encoding) for line in content.splitlines(keepends=True))


def is_text(start: bytes) -> bool:
    """Say whether the first bytes of a file are text, though some be null."""
    told = start.replace(b"\0", b"")
    plain = sum(byte in _PLAIN for byte in told)
    return plain >= _TEXT * len(told) or encoding_of(start).startswith("utf-16")


def lines_of(file: Path, *, whole: bool = False) -> Iterator[str]:
    """
    Yield the lines of a file, split at line feeds and at returns, as a terminal shows them.

    With whole, a last line that does not end is left out: half a number is another number.
    """
    with open_log(file) as raw:
        encoding = encoding_of(raw.read(3))
        raw.seek(0)
        # A byte that is no UTF-8 is escaped, so that its line can be decoded again.
        opened = TextIOWrapper(raw, "utf-8", "surrogateescape", newline=None)
        before = ""
        while line := opened.readline(LONGEST):
            if before:
                yield before
            plain = line.isascii() and "\0" not in line
            before = line if plain else _decode(line.encode("utf-8", "surrogateescape"), encoding)
        if before and not (whole and not before.endswith("\n")):
            yield before


def _decode(line: bytes, encoding: str) -> str:
    """Return the text of one line, which is of UTF-8 or UTF-16 whatever the others are of."""
    end = "\n" if line.endswith((b"\n", b"\r")) else ""
    body = line.rstrip(b"\r\n")
    if encoding != "utf-16-be" and body[:1] == b"\0":
        body = body[1:]  # the second half of the line feed before
    if not _is_wide(body, marked=encoding.startswith("utf-16")):
        return body.replace(b"\0", b"").decode("utf-8", "replace").lstrip("\ufeff") + end
    wide = encoding if encoding.startswith("utf-16") else "utf-16-le"
    return body[: len(body) // 2 * 2].decode(wide, "replace").lstrip("\ufeff") + end


def _is_wide(body: bytes, *, marked: bool) -> bool:
    """Say whether a line is UTF-16: every second byte of it is null, or its file is marked so."""
    even, odd = body[::2].count(0), body[1::2].count(0)
    if max(even, odd) > _WIDE * len(body) and min(even, odd) <= _STRAY * len(body):
        return True
    return marked and (0 < even + odd <= len(body) / 2 or _is_foreign(body))


def _is_foreign(body: bytes) -> bool:
    """Say whether some bytes are no UTF-8."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False
