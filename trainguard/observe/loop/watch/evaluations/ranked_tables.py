"""Watches tables of likeness that are ranked: whether what is said counts each sample itself."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainguard.events.base import Event
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import local_values
from trainguard.observe.tools.owners import named_tensors
from trainguard.observe.tools.patches import Patches

_LEAST, _MOST = 32, 2048  # samples of a table: in few of them numbers agree by chance
_ITSELF = 0.99  # of the rows whose first one is the sample itself: the others may be twins
_LABELS = 4  # vectors of classes among the user's variables
_CUTS = (1, 3, 5, 10, 20)  # ranks that metrics are cut at
_TABLES = 64
_KEPT = 3  # tables of one evaluation, beside the latest
_COARSE = 2e-3  # of a number that is said
_APART = 5  # times what it is rounded by, between what it may be

Ranks = NDArray[np.bool_]  # whether what stands at each rank is of the sample's class


class _Value(NamedTuple):
    """What a metric is with the samples themselves, and without them."""

    name: str
    counted: float
    left_out: float


class RankedTables(Watcher):
    """
    The Probe event "found itself": a metric of retrieval that counts each sample as found.

    measured: what was said last; reference: what it is without the sample itself; step: how often.
    Tables are square, and ranked without gradients by a method of theirs; the classes are among the
    user's variables.
    """

    makes = ("Probe:found itself",)
    relies_on = ("LoggedValues",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._waiting: list[tuple[int, list[_Value], set[str]]] = []  # and the names that were said
        self._tables = 0
        self._step = -1  # that the latest table came after
        self._told: Counter[tuple[str, str]] = Counter()
        self._latest: dict[tuple[str, str], tuple[float, float, str]] = {}

    def install(self, patches: Patches) -> None:
        """Listen to what ranks the rows of tables, and to what is said."""
        self._said = self.recorder.watcher(LoggedValues)
        self._said.at_said.append(self._compare)
        # Functions of the module torch itself are left alone: scripts may be compiled from them.
        for name in ("argsort", "sort", "topk"):
            patches.replace(torch.Tensor, name, self._ranking)

    def finish(self) -> Iterable[Event]:
        """Return the metrics that count each sample itself, once for each name."""
        for (name, metric), times in self._told.items():
            said, truth, source = self._latest[name, metric]
            label = f"{name}\n{metric}"
            yield make_probe("found itself", said, truth, step=times, label=label, source=source)

    def _ranking(self, rank: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that ranks, and tells of it where nothing learns."""
        compiling = torch.compiler.is_compiling

        @wraps(rank)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Do what the original does."""
            ranked = rank(*args, **kwargs)
            if not compiling() and self.recorder.patches.active and not torch.is_grad_enabled():
                self._see(args[0] if args else None, ranked)
            return ranked

        return wrapper

    @shielded
    def _see(self, table: Any, ranked: Any) -> None:
        """Take down what a table comes to whose rows begin with the samples themselves."""
        if type(table) is not torch.Tensor or table.dim() != 2:
            return
        square = table.shape[0] == table.shape[1] and _LEAST <= len(table) <= _MOST
        if not square or not table.is_cpu or self._tables >= _TABLES:
            return
        order = local_values(ranked if isinstance(ranked, torch.Tensor) else ranked[1])
        if order is None or order.dim() != 2 or len(order) != len(table) or order.shape[1] < 2:
            return
        self.looked.add("found itself")
        if float((order[:, 0] == torch.arange(len(table))).float().mean()) >= _ITSELF:
            self._tables += 1
            values = [v for ranks in _ranks(array_of(order)) for v in _metrics(ranks)]
            own = self._waiting if self._step == self.recorder.steps else []
            self._waiting = [*own[-_KEPT:], (self.recorder.tick(), values, set())]
            self._step = self.recorder.steps

    @shielded
    def _compare(self) -> None:
        """Compare what is said before the next step with what the latest tables come to."""
        if self._waiting and self._step != self.recorder.steps:
            self._waiting = []
        for clock, values, names in self._waiting:
            for said, rounding, source, name in self._said.said_after(clock):
                if name not in names and _COARSE * abs(said) >= rounding:
                    found = _find(values, said, rounding + 1e-6)
                    if found is not None:
                        names.add(name)
                        self._told[name, found[0]] += 1
                        self._latest[name, found[0]] = said, found[1], source


def _find(values: list[_Value], said: float, slack: float) -> tuple[str, float] | None:
    """Return the metric that is said with the samples themselves, and what it is without them."""
    for factor in (1, 100):
        if any(abs(said - factor * value.left_out) <= slack for value in values):
            return None
    for value in values:
        for factor in (1, 100):
            near = abs(said - factor * value.counted) <= slack and value.counted < 1
            if near and factor * abs(value.counted - value.left_out) > _APART * slack:
                return value.name, factor * value.left_out
    return None


def _ranks(order: NDArray[Any]) -> Iterator[Ranks]:
    """Yield whether what stands at each rank is of the sample's class, by each of the classes."""
    found = 0
    for _, _, tensor in named_tensors():
        whole = tensor.dim() == 1 and len(tensor) == len(order) and not tensor.is_floating_point()
        if whole and tensor.is_cpu and not tensor.is_complex() and found < _LABELS:
            with suppress(Exception):  # inside of a transformation there are no numbers
                classes = array_of(tensor)
                if 1 < len(np.unique(classes)) <= len(order) // 2:
                    found += 1
                    yield classes[order] == classes[:, None]


def _metrics(ranks: Ranks) -> Iterator[_Value]:
    """Yield metrics of retrieval, with the first rank and without it."""
    whole = ranks.shape[1] == len(ranks)
    if whole:
        yield _Value("mean average precision", *map(_average_precision, (ranks, ranks[:, 1:])))
    cuts = _CUTS if whole else (ranks.shape[1],)
    for cut in cuts:
        pair = [part[:, :cut].astype(float) for part in (ranks, ranks[:, 1:])]
        yield _Value(f"precision at {cut}", *(float(part.mean()) for part in pair))
        yield _Value(f"hits at {cut}", *(float(part.any(1).mean()) for part in pair))


def _average_precision(ranks: Ranks) -> float:
    """Return the mean over samples of the precision at each of their class."""
    hits, places = ranks.cumsum(1), np.arange(1, ranks.shape[1] + 1)
    some = ranks.any(1)
    each = (hits / places * ranks).sum(1)[some] / ranks.sum(1)[some]
    return float(each.mean()) if some.any() else 0.0
