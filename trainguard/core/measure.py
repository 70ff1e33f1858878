"""Words that carry data: what was measured is a number, and where it was is a line and a step."""

from collections.abc import Sequence
from typing import Any, Self

_SHOWN = 4  # processes that are named


class _Words(str):
    """A text with data of its own, kept by `+` when text is added before or after it."""

    __slots__: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: str) -> Self:
        """Return the words with their data; plain words have none."""
        return words if isinstance(words, cls) else cls(words)

    @property
    def data(self) -> dict[str, Any]:
        """The data by name, without the words."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __add__(self, more: str) -> Self:
        """Add text; the data of both are merged."""
        added = more.data if isinstance(more, type(self)) else {}
        return type(self)(str.__add__(self, more), **self._merge(added))

    def __radd__(self, before: str) -> Self:
        """Put text before it."""
        return type(self)(str.__add__(before, self), **self.data)

    def _merge(self, added: dict[str, Any]) -> dict[str, Any]:
        """Return the data with those that were added where there are none yet."""
        return {**self.data, **{n: v for n, v in added.items() if self.data[n] in ("", None)}}


class Measure(_Words):
    """
    A number in its words: `Measure("at most 0.25 times", 0.25, "times")`.

    It reads, compares and renders as its words. value: the number, None where there is none.
    unit: what it counts or is measured in; of memory bytes ("B"), whatever the words are in.
    `"at most " + number(0.25, "times")` keeps the number; an f-string would lose it.
    """

    __slots__ = ("unit", "value")

    value: float | None
    unit: str

    def __new__(cls, words: str, value: float | None = None, unit: str = "") -> Self:
        """Make it of words, the number in them, and its unit."""
        made = super().__new__(cls, words)
        made.value, made.unit = value, unit
        return made

    def _merge(self, added: dict[str, Any]) -> dict[str, Any]:
        """Return the first number with its unit: a second one only explains it."""
        return added if added and self.value is None else self.data


class Place(_Words):
    """
    Where something was found: `Place("step 512 of AdamW", step=512)`.

    It reads, compares and renders as its words. file, line: of the user's code that did it.
    step: of the run or schedule. rank: the process, of several. coordinate: an input's, "x[0, 3]".
    """

    __slots__ = ("coordinate", "file", "line", "rank", "step")

    file: str
    line: int | None
    step: int | None
    rank: int | None
    coordinate: str

    def __new__(
        cls,
        words: str,
        *,
        file: str = "",
        line: int | None = None,
        step: int | None = None,
        rank: int | None = None,
        coordinate: str = "",
    ) -> Self:
        """Make it of words and what is known of the place."""
        made = super().__new__(cls, words)
        made.file, made.line = file, line
        made.step, made.rank, made.coordinate = step, rank, coordinate
        return made

    @property
    def source(self) -> str:
        """The user's code as `file:line`; empty where it is not known."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def in_code(self, source: str) -> "Place":
        """Return the place with the user's code, `file:line`, that did it."""
        file, _, line = source.rpartition(":")
        known = {"file": file, "line": int(line)} if line.isdecimal() else {"file": source}
        return Place(self, **{**self.data, **known}) if source else self


def number(value: float, unit: str = "", form: str = ".4g") -> Measure:
    """Write a number, with four significant digits if nothing else is asked for, and its unit."""
    return Measure(f"{value:{form}} {unit}".rstrip(), value, unit)


def integer(value: float, unit: str = "") -> Measure:
    """Write a number that is counted, without a fraction: "12 steps"."""
    return number(value, unit, ".0f")


def portion(part: float, whole: float, unit: str = "") -> Measure:
    """Write how many of how many, in whole numbers: "3 of 10 batches"."""
    return Measure(f"{part:.0f} of {whole:.0f} {unit}".rstrip(), part, unit)


def at_step(step: int, word: str = "step") -> Place:
    """Write a place in time: "step 512"."""
    return Place(f"{word} {step}", step=step)


def join_places(*places: str) -> Place:
    """Write places from the wide to the narrow, without the empty ones: "step 3, x[0, 1]"."""
    joined = Place("")
    for place in filter(None, places):
        joined = joined + ", " + place if joined else Place.of(place)
    return joined


def ranks_text(ranks: Sequence[int]) -> str:
    """Name processes: "rank 1", "ranks 1 and 2", "ranks 1, 2, 3, 4 and 12 more"."""
    named = [str(rank) for rank in ranks[:_SHOWN]]
    more = len(ranks) - _SHOWN
    if len(ranks) == 1:
        return f"rank {named[0]}"
    if more > 0:
        return f"ranks {', '.join(named)} and {more} more"
    return f"ranks {list_words(named)}"


def list_words(words: Sequence[str]) -> str:
    """Write words in a row: "16, 48 and 80"; raises ValueError where there are none."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
