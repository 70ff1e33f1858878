"""Which samples of which data set a loader serves: by their numbers, inside of all wrappers."""

import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

_LARGEST = 2**20  # samples of a data set
_DEPTH = 8  # data sets inside of others
_ENTRIES = 8  # of a tuple that may be tables
_MARKED = 16  # rows that tell a table from others

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSamples:
    """
    The samples of a data set that a loader serves.

    number: of the data set. family: number of the first one that holds one of its tables.
    indices: of the rows of these, each once, in order. rows: how many they have. mark: what tells
    these rows from others in another process, too; "" where nothing does.
    """

    number: int
    family: int
    indices: Indices
    rows: int
    mark: str = ""

    def is_as(self, other: "IndexedSamples") -> bool:
        """Say whether both are the same samples of the same data set."""
        return self.number == other.number and np.array_equal(self.indices, other.indices)

    def count(self, other: "IndexedSamples") -> int:
        """Return how many are among other samples; 0 where nothing tells which these are."""
        if (self.family, self.rows) != (other.family, other.rows):
            return 0
        return len(np.intersect1d(self.indices, other.indices))


@dataclass(slots=True)
class DataSets:
    """The data sets that loaders serve samples of, by number, as long as they are there."""

    _known: "list[tuple[weakref.ref[Any], int]]" = field(default_factory=list)  # with its family
    _marks: list[str] = field(default_factory=list)

    def find(self, data: Any, sampler: Any) -> IndexedSamples | None:
        """
        Return which samples a loader serves; None where that is unknown.

        data: its data set; sampler: of indices, or of batches of them.

        Raises whatever a data set of the user's raises when it is asked for its length.
        """
        sampler = getattr(sampler, "sampler", sampler)
        if not 0 < len(data) <= _LARGEST:
            return None
        whole = type(sampler) in (SequentialSampler, RandomSampler) and len(sampler) == len(data)
        if whole or type(sampler) is DistributedSampler:  # which all processes share
            indices = np.arange(len(data))
        elif type(sampler) is SubsetRandomSampler:
            indices = np.asarray(sampler.indices)
        else:
            return None
        for _ in range(_DEPTH):
            inner = data.dataset if type(data) is Subset else _find_inner(data)
            if inner is None:
                break
            indices = np.asarray(data.indices)[indices] if type(data) is Subset else indices
            data = inner
        rows = len(data)
        if (listed := _find_list(data)) is not None:
            indices, rows = listed[0][indices], listed[1]
        own = self._number(data, rows)
        return IndexedSamples(*own, np.unique(indices), rows, self._marks[own[0]])

    def _number(self, data: Any, rows: int) -> tuple[int, int]:
        """Return the number of a data set, and that of its family."""
        tables = set(map(id, _tables_of(data, rows)))
        family = len(self._known)
        for number, (ref, known) in enumerate(self._known):
            other = ref()
            if other is data:
                return number, known
            if tables.intersection(map(id, _tables_of(other, rows))):
                family = min(family, known)
        self._known.append((weakref.ref(data), family))
        self._marks.append(_mark_of(data, rows))
        return len(self._known) - 1, family


def find_followed(size: int, most: int) -> list[int]:
    """Return which samples of a data set are followed: the same ones in all processes."""
    stride = max(size // most, 1)
    return [
        i * stride + crc32(b"%d" % i) % stride for i in range(min(size, most))
    ]  # no plain stride: what is served in one might meet all of them, or none


def _mark_of(data: Any, rows: int) -> str:
    """Return a sum of some rows of the tables of a data set: numbers, or text as names of files."""
    for table in _tables_of(data, rows):
        some = table[:: max(1, rows // _MARKED)]
        with suppress(ValueError, TypeError):  # lists of whatever
            values = np.asarray(some)
            if values.dtype.kind in "biufU":
                return f"{rows} {crc32(np.ascontiguousarray(values).tobytes()):x}"
    return ""


def _find_inner(data: Any) -> Any:
    """Return the data set that one of the user's wraps, sample by sample, if there is one."""
    held: list[Any] = [value for value in _values_of(data) if isinstance(value, Dataset)]
    return held[0] if len(held) == 1 and len(held[0]) == len(data) else None


def _find_list(data: Any) -> tuple[Indices, int] | None:
    """Return the rows of tables that a data set lists for its samples, and how many there are."""
    longer = {len(table) for table in _tables_of(data) if len(table) > len(data)}
    lists = []
    for table in _tables_of(data, len(data)) if len(longer) == 1 else ():
        with suppress(ValueError, TypeError):  # lists of whatever
            numbers = np.asarray(table)
            plain = numbers.ndim == 1 and numbers.dtype.kind in "iu"
            if plain and len(np.unique(numbers)) == len(data) and numbers.min() >= 0:
                lists.append(numbers.astype(np.int64))
    rows = max(longer, default=0)
    return (lists[0], rows) if len(lists) == 1 and lists[0].max() < rows else None


def _tables_of(data: Any, rows: int | None = None) -> Iterator[Any]:
    """Yield the lists, arrays and tensors that a data set holds, of so many rows."""
    for value in _values_of(data):
        few = isinstance(value, tuple | list) and len(value) <= _ENTRIES
        for each in (value, *(value if few else ())):
            table = isinstance(each, list | np.ndarray) or (
                isinstance(each, torch.Tensor) and each.dim() > 0
            )
            if table and (rows is None or len(each) == rows):
                yield each


def _values_of(data: Any) -> list[Any]:
    """Return what a data set holds, by whatever names."""
    return list(vars(data).values()) if hasattr(data, "__dict__") else []
