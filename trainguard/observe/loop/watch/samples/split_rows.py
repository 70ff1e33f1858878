"""Watches models that are given all rows at once: whether those of an evaluation are learned."""

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainguard.core.names import EVALUATION, words_of
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, IGNORED, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.patches import Patches

_MARK = "trainguard rows"
_NEAR = 256  # nodes from the loss
_LEAST = 16  # rows in all, and of a part 4
_LARGEST = 2**20  # scores that are kept
_EVALUATIONS = 64  # that are looked at
_LISTED = 8  # entries of a list or tuple that may be masks
_AGAIN = 2  # passes over the same rows before
_ROUNDED = 1e-6  # of a share, beside its rounding

Array = NDArray[Any]


@dataclass(slots=True)
class _Part:
    """
    The rows that are behind a number with a name of an evaluation.

    learned: how many of them the loss of the training was of, at most. values: what was said.
    """

    rows: int
    learned: int = 0
    values: list[float] = field(default_factory=list)
    source: str = ""


class SplitRows(Watcher):
    """
    The Probe event "rows": rows that an accuracy of an evaluation is of, and a loss as well.

    A model is given the same table in each pass, and its rows are told apart by masks or numbers of
    rows. Which of them an accuracy is of is known by its value.
    """

    makes = ("Probe:rows",)
    relies_on = ("LossFunctions", "LoggedValues")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._given: weakref.ref[torch.Tensor] | None = None
        self._again = self._evaluations = 0
        self._scores: tuple[torch.Tensor, int] | None = None  # of the latest pass, and its clock
        self._targets: list[torch.Tensor] = []  # of the latest loss that was learned from
        self._parts: defaultdict[tuple[str, int], _Part] = defaultdict(lambda: _Part(0))

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._logged = self.recorder.watcher(LoggedValues)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep what a pass returns, and see what was said of the one before."""
        first = next((tensor for tensor in self.recorder.given if not tensor.is_nested), None)
        if first is None or len(first) < _LEAST or self._evaluations >= _EVALUATIONS:
            return
        if not self._logged.says_evaluation:
            return
        scores, self._scores = self._scores, None
        known = self._given() if self._given is not None else None
        self._again = self._again + 1 if known is first else 0
        self._given = weakref.ref(first)
        if self._again >= _AGAIN:
            if scores is not None and self._targets:
                self._compare(*scores)
            if _are_scores(output, len(first)):
                self._scores = output.detach().clone(), forward.clock

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the targets of the loss functions that a loss is made of."""
        if self._again and loss.grad_fn is not None:
            near = autograd_graph.below(loss.grad_fn, _NEAR)
            self._targets = [node.metadata[_MARK] for node in near if _MARK in node.metadata]

    def finish(self) -> Iterable[Event]:
        """Return the parts that numbers were said of, once for each name."""
        for (name, _), part in self._parts.items():
            if len(set(part.values)) > 1:
                yield Probe(
                    probe="rows",
                    measured=float(part.learned),
                    reference=float(part.rows),
                    step=len(part.values),
                    label=name,
                    source=part.source,
                )

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Leave the targets of a loss that may be learned from where it was computed."""
        node: Any = value.grad_fn
        if not self._again or node is None or value.dim() or tally.function not in CROSS_ENTROPIES:
            return
        if target.dim() == 1 and target.is_cpu and not target.is_floating_point():
            ignored = tally.ignored
            node.metadata[_MARK] = target.detach().masked_fill(target == ignored, IGNORED)

    def _compare(self, scores: torch.Tensor, clock: int) -> None:
        """Find the rows that numbers of an evaluation are of, and what of them was learned."""
        every = self._logged.said_after(clock)
        said = [each for each in every if not EVALUATION.isdisjoint(words_of(each[3]))]
        if not said:
            return
        self._evaluations += 1
        named, tables = scores.argmax(1).numpy(), list(_tables_of(len(scores)))
        for labels in (table for table in tables if _are_labels(table, scores)):
            masks = _masks_of(tables, labels)
            learned = [_find_learned(array_of(target), labels, masks) for target in self._targets]
            known = [mask for mask in learned if mask is not None]
            if known:
                self._add(said, named == labels, masks, np.any(known, axis=0))

    def _add(self, said: list[Any], right: Array, masks: list[Array], learned: Array) -> None:
        """Take down the numbers that are the share of right ones in one part, and in no other."""
        shares = [float(right[mask].mean()) for mask in masks]
        for value, rounding, source, name in said:
            fits = [at for at, share in enumerate(shares) if _is(value, share, rounding)]
            if len(fits) == 1:
                self.looked.add("rows")
                mask = masks[fits[0]]
                part = self._parts[name, hash(mask.tobytes())]
                part.rows, part.source = int(mask.sum()), source
                part.learned = max(part.learned, int((mask & learned).sum()))
                part.values.append(value)


def _are_scores(output: Any, rows: int) -> bool:
    """Say whether a model has returned scores of classes for each row, on the CPU."""
    plain = type(output) is torch.Tensor and output.is_cpu and output.is_floating_point()
    return plain and output.dim() == 2 and len(output) == rows and 1 < output.numel() <= _LARGEST


def _tables_of(rows: int) -> Iterator[Array]:
    """Yield vectors of booleans or whole numbers among the user's variables, each once."""
    seen = set[int]()
    for _, _, values in find_owners():
        several = (v[:_LISTED] for v in values.values() if isinstance(v, list | tuple))
        for value in (*values.values(), *chain.from_iterable(several)):
            if isinstance(value, torch.Tensor | np.ndarray) and id(value) not in seen:
                seen.add(id(value))
                array = _as_array(value)
                if array is not None and 1 < len(array) <= rows:
                    yield array


def _as_array(value: Any) -> Array | None:
    """Return a vector of booleans or whole numbers as one of NumPy; nothing of other things."""
    if isinstance(value, torch.Tensor):
        if value.dim() != 1 or not value.is_cpu or value.is_floating_point() or value.is_complex():
            return None
        value = array_of(value)
    return value if value.ndim == 1 and value.dtype.kind in "biu" else None


def _are_labels(table: Array, scores: torch.Tensor) -> bool:
    """Say whether a vector may have the class of each row."""
    rows, classes = scores.shape
    integral = table.dtype.kind != "b" and len(table) == rows
    return integral and bool(0 <= table.min() < table.max() < classes)


def _masks_of(tables: list[Array], labels: Array) -> list[Array]:
    """Return the parts of all rows that masks, or vectors of different numbers of rows, are of."""
    masks: dict[bytes, Array] = {}
    rows = np.arange(len(labels))
    for table in tables:
        if table.dtype.kind == "b":
            mask = table if len(table) == len(rows) else rows < 0
        else:
            unique = np.unique(table)
            fits = len(unique) == len(table) and unique[0] >= 0 and unique[-1] < len(rows)
            mask = np.isin(rows, table) if fits else rows < 0
        if _LEAST // 4 <= mask.sum() < len(rows):
            masks[mask.tobytes()] = mask
    return list(masks.values())


def _find_learned(target: Array, labels: Array, masks: list[Array]) -> Array | None:
    """Return the rows whose labels a loss was given; nothing where that is not certain."""
    counted = target != IGNORED
    if len(target) == len(labels):
        return counted if (target == labels)[counted].all() else None
    fits = [mask for mask in masks if np.array_equal(labels[mask], target)]
    return fits[0] if len(fits) == 1 else None


def _is(value: float, share: float, rounding: float) -> bool:
    """Say whether a number that was said is a share, as it is or in percent."""
    return any(abs(value - by * share) <= rounding + _ROUNDED * by for by in (1, 100))
