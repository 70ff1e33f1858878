"""
A Curve is one column of a training run, kept as a snapshot: its text format, read and written.

A file is a header of conditions, then one row for each step: the step, the value of each seed, and
how far it drifts where the parameters begin one unit in the last place elsewhere. Its digest tells
a file that was edited by hand from one that was blessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from math import inf, isfinite, isnan
from types import MappingProxyType
from typing import Any, Final

from trainguard.events.curve import COLUMNS
from trainguard.events.loop import Step
from trainguard.events.trace import Trace

FORMAT: Final = 1
CONDITIONS: Final = (
    "seed",
    "torch",
    "device",
    "dtype",
    "threads",
    "deterministic",
    "hardware",
    "trainguard",
)
_MAGIC = "# trainguard curve, format "
_MARKERS = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")
_DIGITS = 15  # of a whole number: as a float it is still exact
_FLOOR = 1e-3  # of the largest value: below it, differences are measured against this


class Unreadable(ValueError):
    """A file is no curve; the message is what is wrong with it, in a few words."""


@dataclass(frozen=True)
class Curve:
    """
    One column of a run, step by step.

    column: what it is of: "loss", "grad_norm", ...; with the optimizer where there are several.
    steps: the numbers of the steps that have a value.
    runs: the values of each seed, one for each step; a single run unless seeds are compared.
    drift: the worst relative drift up to each step of runs that began one unit in the last place
        elsewhere; empty until it is measured.
    made: how many steps the run made, of which long runs keep some only.
    conditions: device, dtype, torch, threads, ... as texts.
    """

    column: str
    steps: tuple[int, ...] = ()
    runs: tuple[tuple[float, ...], ...] = ((),)
    drift: tuple[float, ...] = ()
    made: int = 0
    conditions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the conditions read-only."""
        object.__setattr__(self, "conditions", MappingProxyType(dict(self.conditions)))

    @property
    def values(self) -> tuple[float, ...]:
        """The values of the first run."""
        return self.runs[0]

    @property
    def finite(self) -> bool:
        """Whether every value is a number."""
        return all(isfinite(value) for run in self.runs for value in run)

    @property
    def rows(self) -> dict[int, int]:
        """The row of each step."""
        return {step: row for row, step in enumerate(self.steps)}

    def scales(self) -> list[float]:
        """Return what a difference is relative to at each step: the value, where it is not tiny."""
        sizes = [abs(value) for value in self.values]
        floor = _FLOOR * max((size for size in sizes if isfinite(size)), default=0.0)
        return [max(size, floor) for size in sizes]

    def drifting(self, others: Sequence["Curve"]) -> "Curve":
        """Return the curve with the worst drift of other runs of it, cumulated over the steps."""
        rows = [other.rows for other in others]
        worst, drift = 0.0, []
        for step, value, scale in zip(self.steps, self.values, self.scales(), strict=True):
            for other, row in zip(others, rows, strict=True):
                away = abs(other.values[row[step]] - value) if step in row else 0.0
                share = away / scale if scale else 0.0
                worst = max(worst, share if isfinite(share) else inf)
            drift.append(worst)
        return replace(self, drift=tuple(drift))

    def to_text(self) -> str:
        """Write the curve as the text of a snapshot."""
        head = [f"{_MAGIC}{FORMAT}", f"# column: {self.column}"]
        head += [f"# points: {len(self.steps)}", f"# made: {self.made}"]
        head += [f"# {name}: {self.conditions.get(name, '')}".rstrip() for name in CONDITIONS]
        columns = [[f"{step}" for step in self.steps]]
        columns += [[f"{value:.9g}" for value in run] for run in self.runs]
        if self.drift:
            columns.append([f"{value:.3g}" for value in self.drift])
        rows = [" ".join(row) for row in zip(*columns, strict=True)]
        body = [" ".join(_titles(len(self.runs), bool(self.drift))), *rows]
        lines = [*head, f"# digest: {_digest([*head, *body])}", *body]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str, finite: bool = True) -> "Curve":
        """
        Read what `to_text` wrote; raises Unreadable with what is wrong with any other text.

        finite: whether to refuse values that are no numbers, as a snapshot never has any.
        """
        lines = text.splitlines()
        _check_whole(text, lines)
        head = dict(_entry(line, number) for number, line in enumerate(lines, 1) if line[:1] == "#")
        start = len(head)
        titles = lines[start].split() if len(lines) > start else []
        seeds, drifts = titles[1:].count("value"), titles[-1:] == ["drift"]
        if not seeds or titles != _titles(seeds, drifts):
            raise Unreadable("it is truncated or edited by hand: it has no line of titles")
        first = start + 2  # lines count from 1
        rows = [_row(line, first + i, len(titles)) for i, line in enumerate(lines[start + 1 :])]
        odd = [first + i for i, row in enumerate(rows) if not all(map(isfinite, row))]
        if odd and finite:
            raise Unreadable(f"line {odd[0]} has a value that is not finite")
        points = _whole(head, "points")
        if len(rows) != points:
            told = "truncated" if len(rows) < points else "edited by hand"
            raise Unreadable(f"it is {told}: {len(rows)} of {points} points")
        _check_order(rows)
        unsigned = [line for line in lines if not line.startswith("# digest:")]
        if head.get("digest") != _digest(unsigned):
            raise Unreadable("it was edited by hand: its digest is not that of its rows")
        columns = list(zip(*rows, strict=True)) or [()] * len(titles)
        return cls(
            head.get("column", ""),
            tuple(int(step) for step in columns[0]),
            tuple(columns[1 : 1 + seeds]),
            columns[-1] if drifts else (),
            _whole(head, "made"),
            {name: head.get(name, "") for name in CONDITIONS},
        )


def _titles(seeds: int, drift: bool) -> list[str]:
    """Return the titles of the columns of numbers."""
    return ["step", *["value"] * seeds, *(["drift"] if drift else [])]


def _digest(lines: Sequence[str]) -> str:
    """Return a short digest of some lines."""
    return sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()[:16]


def _check_whole(text: str, lines: Sequence[str]) -> None:
    """Raise for a text that is empty, not ours, from a newer format, unmerged or cut off."""
    if not text.strip():
        raise Unreadable("it is empty")
    marked = [n for n, line in enumerate(lines, 1) if line.startswith(_MARKERS)]
    if marked:
        raise Unreadable(f"it has conflict markers of a merge, the first in line {marked[0]}")
    if not lines[0].startswith(_MAGIC):
        raise Unreadable("it is no curve of trainguard")
    written = lines[0].removeprefix(_MAGIC).strip()
    if not _is_whole(written):
        raise Unreadable(f"it is no curve of trainguard: its format is {written[:20]!r}")
    if int(written) != FORMAT:
        age = "newer" if int(written) > FORMAT else "unknown"
        raise Unreadable(f"it has the {age} format {written}, and this trainguard reads {FORMAT}")
    if not text.endswith("\n"):
        raise Unreadable("it is truncated: its last line has no end")


def _entry(line: str, number: int) -> tuple[str, str]:
    """Return the name and the text of a line of the header."""
    if number == 1:
        return "format", line.removeprefix(_MAGIC)
    name, colon, text = line.removeprefix("#").partition(":")
    if not colon:
        raise Unreadable(f"it was edited by hand: line {number} is no entry of its header")
    return name.strip(), text.strip()


def _is_whole(word: str) -> bool:
    """Say whether a word is a whole number that a count of steps may be."""
    return word.isascii() and word.isdecimal() and len(word) <= _DIGITS


def _whole(head: Mapping[str, str], name: str) -> int:
    """Return a whole number of the header."""
    if not _is_whole(head.get(name, "")):
        raise Unreadable(f"it is truncated or edited by hand: its header has no number {name!r}")
    return int(head[name])


def _row(line: str, number: int, width: int) -> tuple[float, ...]:
    """Return the numbers of a row."""
    words = line.split()
    if len(words) != width or not _is_whole(words[0]):
        raise Unreadable(f"it is truncated or edited by hand: line {number} is no row")
    try:
        return tuple(map(float, words))
    except ValueError:
        raise Unreadable(f"it was edited by hand: line {number} has what is no number") from None


def _check_order(rows: Sequence[tuple[float, ...]]) -> None:
    """Raise where the steps of the rows do not rise."""
    for before, after in pairwise(rows):
        if not before[0] < after[0]:
            raise Unreadable(f"it was edited by hand: step {after[0]:.0f} follows {before[0]:.0f}")


def curves(trace: Trace[Any], column: str) -> tuple[Curve, ...]:
    """
    Return a column of a run as curves: one for each optimizer, the one of most steps first.

    That one goes by the column's name, the others have their optimizer's with it.
    """
    steps: dict[str, list[Step]] = {}
    for event in trace:
        if isinstance(event, Step):
            steps.setdefault(event.optimizer, []).append(event)
    named = sorted(steps.items(), key=lambda own: -sum(step.span for step in own[1]))
    made = [
        _curve(f"{column} of {name}" if rank else column, column, own, trace)
        for rank, (name, own) in enumerate(named)
    ]
    return tuple(curve for curve in made if curve.steps)


def noun(column: str) -> str:
    """Return how a report calls the column of a curve."""
    name, _, optimizer = column.partition(" of ")
    return f"{COLUMNS[name].noun}{f' of {optimizer}' if optimizer else ''}"


def _curve(name: str, column: str, steps: list[Step], trace: Trace[Any]) -> Curve:
    """Return the curve of one optimizer's steps; those that a scaler skipped are left out."""
    of = COLUMNS[column]
    pairs = [(step.step, of.value(step), of.known(step)) for step in steps if not step.skipped]
    kept = [(step, float(value)) for step, value, known in pairs if known or not isnan(value)]
    return Curve(
        name,
        tuple(step for step, _ in kept),
        (tuple(value for _, value in kept),),
        (),
        steps[-1].step + steps[-1].span if steps else 0,
        {key: _text(trace.conditions.get(key)) for key in CONDITIONS},
    )


def _text(value: Any) -> str:
    """Write a condition as a text."""
    if isinstance(value, tuple):
        return " ".join(_text(entry) for entry in value)
    return "" if value is None else str(value)
