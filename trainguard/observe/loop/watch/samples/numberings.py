"""Watches the numbers that data sets give to names: whether two give one name the same number."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.owners import parts_of
from trainguard.observe.tools.user_line import caller

_DATA, _PASSES = 16, 8  # data sets, and passes with batches of each, that are looked at
_DEEP, _WIDE = 3, 64  # attributes of attributes, and entries of what is no table of numbers
_LEAST, _LARGEST = 8, 2**17  # names in a table
_READ = 4096  # numbers of an input
_REACHED = 0.8  # of the highest number: of a thousand draws the highest is almost that, mostly

Table = dict[int, int]  # by the hashes of names


@dataclass(slots=True)
class _NumberedData:
    """
    A data set: its tables of numbers by their paths, and what of it a module was given.

    columns: of each input that is of whole numbers: the lowest, the highest, and all of them.
    names: by the path of a table, those that are whole numbers themselves.
    """

    tables: dict[str, Table]
    names: dict[str, set[int]]
    learned: bool = False
    passes: int = 0
    source: str = ""
    columns: dict[int, set[int]] = field(default_factory=dict)

    def uses(self, path: str) -> set[int]:
        """Return which inputs have numbers of a table, and of no other kind."""
        numbers, named = set(self.tables[path].values()), self.names.get(path, set())
        return {
            place
            for place, given in self.columns.items()
            if len(given) >= _LEAST and given <= numbers and not given <= named
            # Else they may be smaller numbers of something else.
            if max(given) >= _REACHED * max(numbers)
        }


class Numberings(Watcher):
    """
    The Probe event "numberings": names with another number in the data of an evaluation.

    Of tables that two data sets have under one path, {name: number}, whose numbers a module with
    embeddings is given. reference: the names that both have; label: the path.
    """

    makes = ("Probe:numberings",)
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._embeds: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._known: dict[int, tuple[weakref.ref[Any], _NumberedData]] = {}

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what a module that learns is given."""
        if forward.gradients:
            self._look(forward, module, inputs)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what a module that is asked is given."""
        self._look(forward, module, inputs)

    def finish(self) -> Iterable[Event]:
        """Return the tables that disagree."""
        every = [found for _, found in self._known.values()]
        for other in every:
            for own in every if not other.learned else ():
                both = own.tables.keys() & other.tables.keys() if own.learned else set()
                for path in sorted(both):
                    yield from self._compare(path, own, other)

    def _look(self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Take down the whole numbers that a module with embeddings is given of a data set."""
        if module not in self._embeds:
            self._embeds[module] = any(isinstance(m, nn.Embedding) for m in module.modules())
        found = self._find_data() if self._embeds[module] else None
        if found is None or (found.passes >= _PASSES and found.learned >= forward.gradients):
            return
        found.passes += 1
        found.learned |= forward.gradients
        found.source = found.source or caller(3)
        for place, given in enumerate(inputs):
            if isinstance(given, torch.Tensor) and given.dtype in (torch.int64, torch.int32):
                numbers = given.detach().flatten()[:_READ].clone()
                self.recorder.reads.ask(self, [numbers], partial(_add, found, place))

    def _compare(self, path: str, own: _NumberedData, other: _NumberedData) -> Iterator[Event]:
        """Yield what two tables of one path disagree about, where a module is given of both."""
        if not own.uses(path) & other.uses(path):
            return
        before, after = own.tables[path], other.tables[path]
        shared = before.keys() & after.keys()
        if 2 * len(shared) < min(len(before), len(after)):
            return
        self.looked.add("numberings")
        changed = sum(before[name] != after[name] for name in shared)
        if changed:
            yield make_probe("numberings", changed, len(shared), label=path, source=other.source)

    def _find_data(self) -> _NumberedData | None:
        """Return what is known of the data set of the latest batch that a loader has served."""
        iterator = self.recorder.watcher(Batches).served_by()
        data = getattr(iterator, "_dataset", None)
        for _ in range(_DEEP):
            data = getattr(data, "dataset", data)
        if data is None or not type(data).__weakrefoffset__:
            return None
        known = self._known.get(id(data))
        if known is not None and known[0]() is data:
            return known[1]
        if len(self._known) >= _DATA:
            return None
        tables = dict(_find_tables(data, "", _DEEP))
        names = {path: {n for n in table if type(n) is int} for path, table in tables.items()}
        hashed = {
            path: {hash(n): number for n, number in table.items()} for path, table in tables.items()
        }
        self._known[id(data)] = weakref.ref(data), _NumberedData(hashed, names)
        return self._known[id(data)][1]


def _add(found: _NumberedData, place: int, numbers: list[torch.Tensor]) -> None:
    """Take in the numbers of an input."""
    found.columns.setdefault(place, set()).update(numbers[0].tolist())


def _find_tables(owner: Any, path: str, depth: int) -> Iterator[tuple[str, Mapping[Any, int]]]:
    """Yield the tables that number names, below something of the user's, with their paths."""
    if isinstance(owner, Mapping) and _numbers(owner):
        yield path, owner
    elif depth and not isinstance(owner, nn.Module):
        for name, value in _parts_of(owner):
            yield from _find_tables(value, f"{path}{name}", depth - 1)


def _parts_of(owner: Any) -> list[tuple[str, Any]]:
    """Return the entries of a small container, or the attributes of an object of the user's."""
    if isinstance(owner, tuple | list):
        return [(f"[{place}]", value) for place, value in enumerate(owner[:_WIDE])]
    inside = isinstance(owner, dict)
    return [(f"[{n!r}]" if inside else f".{n}", value) for n, value in parts_of(owner).items()]


def _numbers(table: Mapping[Any, Any]) -> bool:
    """Say whether a mapping gives names the numbers of a row, each one once."""
    if not isinstance(table, dict) or not _LEAST <= len(table) <= _LARGEST:
        return False
    values = list(dict.values(table))
    if type(values[0]) is not int or not all(type(value) is int for value in values):
        return False
    return bool(len(set(values)) == len(values) == max(values) - min(values) + 1)
