"""Watches collate functions of the user's: whether the fields of a sample stay side by side."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.counterfactual.forking import Exit, fork, obstacle
from trainguard.observe.loop.watch.samples.batches import Batches, ServedBatch
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import foreign

_SECONDS = 2.0  # of processor time for the samples of a batch
_MOST = 8  # collate functions
_SAMPLES = 16  # of a batch
_FIELDS = 8  # of a sample, and tensors of a batch

Values = np.ndarray[Any, Any]


class CollatedPairs(Watcher):
    """
    The Probe event "collated": samples whose fields a collate function puts into different orders.

    That is tried in a closed-off child, with the first batch of a loader: one field is ordered by
    length, and another has the order of the samples. reference: of how many; label: which fields.
    """

    makes = ("Probe:collated",)
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._tried: list[CodeType] = []
        self._found: dict[int, Probe] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the first batch of each pass."""
        self._batches = self.recorder.watcher(Batches)
        self._batches.at_pass.append(self._begin)

    def finish(self) -> Iterable[Event]:
        """Return what was found of data that were trained on."""
        return [probe for key, probe in self._found.items() if key in self._batches.trained_data]

    @shielded
    def _begin(self, iterator: Any, served: ServedBatch) -> None:
        """Have a child collate a few samples, and take down what it has seen."""
        collate, data = getattr(iterator, "_collate_fn", None), getattr(iterator, "_dataset", None)
        code = _code_of(collate)
        if code is None or not foreign(code.co_filename):
            return
        known = code in self._tried or len(self._tried) >= _MOST
        if known or not self.recorder.probe or not served.samples or obstacle():
            return
        self._tried.append(code)
        answer = fork(_SECONDS, lambda way_out: _collate(data, collate, way_out))
        report = answer.report if answer is not None else {}
        self.looked |= {"collated"} if report.get("ordered") else set()
        if report.get("apart"):
            self._found[id(data)] = Probe(
                probe="collated",
                measured=float(report["apart"]),
                reference=float(report["of"]),
                label=report["label"],
                source=f"{code.co_filename}:{code.co_firstlineno}",
            )


def _code_of(collate: Any) -> CodeType | None:
    """Return the code of a function, or of an object that is called; None of what has none."""
    own = getattr(collate, "__code__", None) or getattr(type(collate).__call__, "__code__", None)
    return own if isinstance(own, CodeType) else None


def _collate(data: Any, collate: Any, way_out: Exit) -> None:
    """Collate some samples, and report how many of them have fields beside those of another."""
    count = len(data)
    places = random.Random(0).sample(range(count), min(_SAMPLES, count))
    samples = [data[place] for place in places]
    fields = [[_values_of(entry) for entry in _entries(sample)] for sample in samples]
    columns = [list(column) for column in zip(*fields, strict=True)][:_FIELDS]
    parts = list(_parts_of(collate(samples), len(samples)))[:_FIELDS]
    if any(sorted(part.reshape(-1).tolist()) == [*range(len(samples))] for part in parts):
        way_out.void("the order is given, too: what is made of it may be put back")
    ordered, apart, label = find_torn(columns, parts)
    way_out.report(ordered=ordered, apart=apart, of=len(samples), label=label)


def find_torn(
    columns: Sequence[Sequence[Values | None]], parts: Sequence[Values]
) -> tuple[bool, int, str]:
    """
    Return whether a field gives the order of a batch, how many of another are apart, and which.

    columns: the fields of samples, each by sample; parts: the tensors of their batch, (N, ...). One
    of both orders is that of the samples, and the other one goes by length.
    """
    orders = [(f, order) for f, own in enumerate(columns) for order in _orders(own, parts)]
    for field, order in orders:
        lengths = [values.size for values in columns[field] if values is not None]
        turned = _is_sorted([lengths[place] for place in order])
        if _is_sorted(lengths) or not turned:
            continue
        for other, column in enumerate(columns):
            for part in parts if other != field else ():
                stays = all(map(_is_of, part, column))
                apart = sum(not _is_of(part[row], column[place]) for row, place in enumerate(order))
                if stays and apart:
                    return True, apart, f"entries {field} and {other} of its samples"
    return bool(orders), 0, ""


def _orders(column: Sequence[Values | None], parts: Sequence[Values]) -> Iterator[list[int]]:
    """Yield the samples that the rows of tensors are of, where each is of another one."""
    for part in parts:
        owners = [[i for i, values in enumerate(column) if _is_of(row, values)] for row in part]
        order = [own[0] for own in owners if own]
        if len(order) == len(set(order)) == len(column):
            yield order


def _is_of(row: Values, values: Values | None) -> bool:
    """Say whether a row has some values, at its begin, behind a mark or at its end, and padding."""
    if values is None or not values.size:
        return False
    if row.ndim == values.ndim > 1:
        return np.array_equal(row[tuple(map(slice, values.shape))], values)
    row, values = row.reshape(-1), values.reshape(-1)
    starts = {0, 1, max(0, len(row) - len(values))}
    return any(np.array_equal(row[start : start + len(values)], values) for start in starts)


def _is_sorted(lengths: list[int]) -> bool:
    """Say whether lengths only rise or only fall."""
    return lengths in (sorted(lengths), sorted(lengths, reverse=True))


def _entries(sample: Any) -> list[Any]:
    """Return the fields of a sample."""
    if isinstance(sample, Mapping):
        return list(sample.values())
    return list(sample) if isinstance(sample, tuple | list) else [sample]


def _values_of(entry: Any) -> Values | None:
    """Return a copy of the numbers of a field; None of what has none."""
    try:
        array = array_of(entry.detach()) if isinstance(entry, torch.Tensor) else np.asarray(entry)
        return array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        return None


def _parts_of(batch: Any, count: int) -> Iterator[Values]:
    """Yield the tensors of a batch that have a row for each sample, that first."""
    for entry in [batch] if isinstance(batch, torch.Tensor) else _entries(batch):
        if isinstance(entry, PackedSequence):
            entry = pad_packed_sequence(entry, batch_first=True)[0]
        if isinstance(entry, torch.Tensor) and entry.dim() and count in entry.shape[:2]:
            first = entry if len(entry) == count else entry.transpose(0, 1)
            yield array_of(first.detach()).astype(np.float64)
