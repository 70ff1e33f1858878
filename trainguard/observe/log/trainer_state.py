"""The trainer_state.json of Hugging Face's Trainer, and other files that are one JSON document."""

import re
from collections.abc import Iterator
from contextlib import suppress
from io import TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trainguard.core.errors import DeclarationError
from trainguard.observe.log.json_lines import read_value, row_of_object
from trainguard.observe.log.reading import open_log
from trainguard.observe.log.row import Row
from trainguard.observe.log.text import encoding_of

_LISTS = ("log_history", "history", "logs", "metrics")
_BLOCK = 1 << 16  # characters that are read at once
_LONGEST = 1 << 24  # characters of a value that is no row
_SIGN = re.compile(r"[^\s,:\ufeff]")


def rows(file: Path, chosen: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of a document: its `log_history`, the list that it is, or its own lists."""
    given, total = tuple(sorted(chosen.items())), 0
    last: Row | None = None
    columns = dict[str, list[Any]]()
    for name, value in _entries(file):
        if not name and isinstance(value, dict):
            if last is not None:
                yield last
            last = row_of_object(value, given)
        elif name == "max_steps" and isinstance(value, float) and 0 < value < 1 << 62:
            total = int(value)
        elif name and isinstance(value, list):
            columns[name] = value
    if last is not None:  # how many steps there are to be may stand behind the rows
        yield last._replace(total=total)
        return
    for each in zip_longest(*columns.values()):  # {"loss": [2.3, 2.1], "val_loss": [2.4, 2.2]}
        yield row_of_object(dict(zip(columns, each, strict=True)), given)


def _entries(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield what a document has in it; raises for one that is none, or is cut off."""
    with open_log(file) as raw:
        encoding = encoding_of(raw.read(3))
        raw.seek(0)
        try:
            with TextIOWrapper(raw, encoding, "replace") as opened:
                yield from _Document(opened).entries()
        except (ValueError, RecursionError) as error:
            told = getattr(error, "msg", str(error))  # without a place in what was read last
            raise DeclarationError(
                f"{file} is no whole JSON document ({told[:60]}). Give another log of the run."
            ) from None


class _Document:
    """A JSON document that is read value by value: a million rows take no room."""

    def __init__(self, file: TextIOWrapper) -> None:
        self._file, self._text, self._at, self._plain = file, "", 0, True

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Yield each member of an object by its name, and by "" each of a list of rows."""
        if self._take("["):
            yield from self._members()
        elif self._take("{"):
            found = False
            while not self._take("}"):
                name = self._value()
                if not found and name in _LISTS and self._take("["):
                    found = True
                    yield from self._members()
                else:
                    yield str(name), self._value()
        else:
            raise ValueError("it is neither a list nor an object")
        if self._next():
            raise ValueError("there is more behind its end")

    def _members(self) -> Iterator[tuple[str, Any]]:
        """Yield the members of a list."""
        while not self._take("]"):
            for value in self._objects() or [self._value()]:
                yield "", value

    def _objects(self) -> list[Any]:
        """Return the members of a list that were read whole, if they are plain objects."""
        end = self._text.rfind("}", self._at) + 1
        if not (self._plain and end):
            return []
        text, members, read = f"[{self._text[self._at : end]}]", list[Any](), 0
        with suppress(ValueError, RecursionError):
            members, read = read_value(text)
        if read < len(text):  # the last brace is within one of them, or behind the list
            self._plain = False
            return []
        self._at = end
        return members

    def _next(self) -> str:
        """Return the next character that is no space, comma or colon; nothing at the end."""
        while True:
            found = _SIGN.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            if found:
                return found[0]
            if not self._read(_BLOCK):
                return ""

    def _take(self, mark: str) -> bool:
        """Pass over a mark, if it comes next."""
        taken = self._next() == mark
        self._at += taken
        return taken

    def _value(self) -> Any:
        """Return the value that comes next; raises ValueError where the document ends before."""
        self._next()
        while True:
            try:
                value, end = read_value(self._text, self._at)
            except ValueError:
                if not self._read(max(_BLOCK, len(self._text) - self._at)):
                    raise
                continue
            # A number at the very end of what was read may go on.
            if end < len(self._text) or not self._read(_BLOCK):
                self._at = end
                return value

    def _read(self, count: int) -> bool:
        """Read on, and forget what was passed; say whether there was more."""
        more = self._file.read(count)
        if more:
            self._text, self._at = self._text[self._at :] + more, 0
            if len(self._text) > _LONGEST:
                raise ValueError(f"a value in it has more than {_LONGEST:,} characters")
        return bool(more)
