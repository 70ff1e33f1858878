"""Watches numbers that stand for the names in a column: whether two columns number them alike."""

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.user_line import caller

_LOOKS = 4  # evaluations
_LEAST, _LARGEST = 8, 2**17  # names, and rows of a column
_COLUMNS = 64
_WIDEST = 16  # columns of a table
_REACHED = 0.8  # of the rows of an embedding, that the highest number is

Column = np.ndarray[Any, Any]


class _Named(NamedTuple):
    """A column: the object that has it, its class, its name there, and its values."""

    owner: int
    kind: str
    name: str
    values: Column


class RenumberedRows(Watcher):
    """
    The Probe event "numberings", of rows that a script numbers by itself.

    Of a column of names and one of numbers, which an embedding is asked for in an evaluation, and
    of two such columns of an object of the same class, whose numbers fit the embedding as well.
    """

    makes = ("Probe:numberings",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._rows: weakref.WeakKeyDictionary[nn.Module, set[int]] = weakref.WeakKeyDictionary()
        self._looks = 0
        self._found: Probe | None = None

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at the columns that an evaluation is made with."""
        if self._looks >= _LOOKS:
            return
        if module not in self._rows:
            tables = (part for part in module.modules() if isinstance(part, nn.Embedding))
            self._rows[module] = {int(table.num_embeddings) for table in tables}
        rows = self._rows[module]
        tensors = [each for each in inputs if rows and isinstance(each, torch.Tensor)]
        given = [part for each in tensors for _, part in _split(each)]
        if given:
            self._looks += 1
            self._look(given, rows, caller(3))

    def finish(self) -> Iterable[Event]:
        """Return the columns that disagree most."""
        return [] if self._found is None else [self._found]

    def _look(self, given: list[Column], rows: set[int], source: str) -> None:
        """Compare the columns that inputs are parts of with those of other objects."""
        columns = list(_find_columns())
        names = [each for each in columns if each.owner]
        numbers = [each.values for each in columns if each.values.dtype.kind == "i"]
        asked = [each for each in numbers if any(_is_part(part, each) for part in given)]
        fits = [each for each in numbers if any(_reaches(each, most) for most in rows)]
        for own, table in ((n, t) for n in names for t in _number_all(n.values, asked)):
            alike = [n for n in names if n[1:3] == own[1:3] and n.owner != own.owner]
            others = [other for n in alike for other in _number_all(n.values, fits)]
            self._compare(own, table, others, source)

    def _compare(
        self, own: _Named, table: dict[Any, int], others: list[dict[Any, int]], source: str
    ) -> None:
        """Take down how many names have another number in the table that is most like this one."""
        pairs = [(shared, t) for t in others if 2 * len(shared := t.keys() & table) >= len(table)]
        if not pairs:
            return
        self.looked.add("numberings")
        changed = [(sum(t[n] != table[n] for n in shared), len(shared)) for shared, t in pairs]
        times, count = min(changed, key=lambda each: each[0] / each[1])
        known = self._found
        if times and (known is None or times / count > known.measured / known.reference):
            label = f".{own.name}"
            self._found = make_probe("numberings", times, count, label=label, source=source)


def _is_column(value: Any) -> bool:
    """Say whether something is a column of whole numbers on the host."""
    if isinstance(value, torch.Tensor):
        able = value.is_cpu and value.dim() == 1 and has_rows(value)
        return able and value.dtype in (torch.int64, torch.int32) and len(value) >= _LEAST
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.hasobject:
        return False
    return value.dtype.kind in "iuUS" and _LEAST <= len(value) <= _LARGEST


def _find_columns() -> Iterator[_Named]:
    """Yield columns in the user's variables, and in objects and lists of rows that these hold."""
    left = _COLUMNS
    for name, key, values in find_owners():
        owner = key if isinstance(key, int) and name else 0
        kind = ",".join(map(str, values)) if owner else ""
        for field, value in values.items():
            rows = _are_rows(value)
            columns = _read_rows(value) if rows else _split(value)
            for own, column in islice(columns, left):
                left -= 1
                if rows:
                    yield _Named(id(value), ",".join(map(str, value[0])), own, column)
                else:
                    yield _Named(owner, kind, f"{field}{own}", column)


def _split(value: Any) -> Iterator[tuple[str, Column]]:
    """Yield a column of whole numbers or names, or those of a table, with what to call it by."""
    if not isinstance(value, torch.Tensor | np.ndarray) or len(value.shape) != 2:
        columns = [("", value)]
    else:
        several = 1 < value.shape[1] <= _WIDEST
        columns = [(f"[:, {n}]", value[:, n]) for n in range(value.shape[1] if several else 0)]
    for name, column in columns:
        if _is_column(column) and len(column) <= _LARGEST:
            here = array_of(column.detach()) if isinstance(column, torch.Tensor) else column
            yield name, here


def _are_rows(value: Any) -> bool:
    """Say whether something is a list of rows, each a name or a number for each of its columns."""
    if type(value) is not list or not _LEAST <= len(value) <= _LARGEST:
        return False
    return all(type(row) is dict and row.keys() == value[0].keys() for row in value)


def _read_rows(rows: list[dict[Any, Any]]) -> Iterator[tuple[str, Column]]:
    """Yield the columns of some rows that have names."""
    for key, first in rows[0].items():
        if type(first) is str and all(type(row[key]) is str for row in rows):
            yield str(key), np.array([row[key] for row in rows])


def _is_part(part: Column, whole: Column) -> bool:
    """Say whether numbers are a batch of a column, in its order."""
    size = len(part)
    for begin in range(0, len(whole) - size + 1, size):
        if part[0] == whole[begin] and np.array_equal(part, whole[begin : begin + size]):
            return True
    return False


def _reaches(numbers: Column, rows: int) -> bool:
    """Say whether numbers go up to the last rows of an embedding, and not beyond."""
    return bool(_REACHED * rows <= numbers.max() + 1 <= rows)


def _number_all(names: Column, numbers: list[Column]) -> Iterator[dict[Any, int]]:
    """Yield the tables by which columns number names."""
    yield from (table for each in numbers if (table := _number(names, each)) is not None)


def _number(names: Column, numbers: Column) -> dict[Any, int] | None:
    """Return which number each name has, where that is one and no other name's."""
    if len(names) != len(numbers) or names is numbers or np.array_equal(names, numbers):
        return None
    each, first, place = np.unique(names, return_index=True, return_inverse=True)
    if not _LEAST <= len(each) < len(names) or len(np.unique(numbers)) != len(each):
        return None
    found = numbers[first]
    if not np.array_equal(found[place.ravel()], numbers):
        return None
    return dict(zip(each.tolist(), found.tolist(), strict=True))
