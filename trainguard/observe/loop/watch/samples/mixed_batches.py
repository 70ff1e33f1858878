"""Watches batches that are mixed of two samples each: whether their labels are mixed alike."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.affine_parts import affine_parts
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.unmixed_rows import unmix
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.owners import named_tensors
from trainguard.observe.tools.patches import Patches

_LOOKS = 24  # steps with two labels for each sample
_LEAST, _ROWS = 4, 16  # samples of a batch, and those of which the parts are looked for
_LARGEST = 2**20  # elements of a batch
_EXACT = 1e-3  # of the spread of a sample: what is left of it where its parts are found
_APART = 0.1  # between the two weights: of halves it is not known which is which
_NEAR = 0.05  # between weights: a box that is cut at the border is a little smaller
_SEARCHES = 8  # among all data, which takes some milliseconds for each sample of a batch
_SETS = 4  # of data, in which the samples of a batch are looked for
_LABELS = "trainguard: labels of a loss"
_MOST_ALIKE = 0.9  # of labels by another order: of few classes many are the same by chance


# The share of its own sample in each row, and which other one the rest is of.
_Parts = tuple[float, list[int]]


class MixedBatches(Watcher):
    """
    The Probe events "mixed", of batches `a * x + (1 - a) * x[order]` with a loss for each label.

    Of pixels that are mixed or pasted. measured: steps in which the label says "labels of other
    samples" or "weights of each other", reference: of how many whose parts were found.
    """

    makes = ("Probe:mixed",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._inputs: list[Table] = []  # of the latest pass that learns
        self._calls = 0  # since the latest pass backward
        self._looks = self._known = self._searches = 0
        self._wrong: dict[str, int] = {}
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep the inputs of a pass that learns, where losses with two labels were seen before."""
        if forward.gradients and self._source and self._looks < _LOOKS:
            tables = [_rows(each) for each in inputs if _is_batch(each)]
            self._inputs = [table for table in tables if table is not None]

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Leave its labels with a loss: they live and die with its graph."""
        node: Node = value.grad_fn
        fits = tally.function in CROSS_ENTROPIES and isinstance(target, torch.Tensor)
        if self._looks >= _LOOKS or not fits or node is None or value.dim():
            return
        if target.dim() == 1 and not target.is_floating_point() and target.is_cpu:
            node.metadata[_LABELS] = target.detach(), tally.source
            self._calls += 1

    def before_backward(self, loss: torch.Tensor) -> None:
        """Hold the weights of two labels against those of the two samples."""
        inputs, self._inputs = self._inputs, []
        calls, self._calls = self._calls, 0
        if self._looks >= _LOOKS or calls < 2 or loss.grad_fn is None:
            return
        edge = loss.grad_fn, 0
        parts = [part for part in affine_parts(edge, ends=_has_labels) if _has_labels(part.node)]
        if len(parts) != 2:
            return
        self._looks += 1
        targets = [part.node.metadata[_LABELS][0] for part in parts]
        self._source = self._source or parts[0].node.metadata[_LABELS][1]
        weights = _shares(parts[0].factor, parts[1].factor)
        if not inputs or weights is None or abs(weights[0] - weights[1]) < _APART:
            return
        labels = [np.array(array_of(target)) for target in targets]
        held = [held for _, _, held in named_tensors() if _is_batch(held)]
        found = _find_parts(inputs, held)
        if found is None and self._searches < _SEARCHES:
            self._searches += 1
            found = _find_in_all(inputs, held, weights[0])
        if found is not None and all(len(own) == len(each) for own in inputs for each in labels):
            self._judge(found, labels, weights)

    def _judge(self, parts: _Parts, labels: list[Table], weights: tuple[float, float]) -> None:
        """Say whether labels come from where the samples come from, and weigh as much."""
        share, order = parts
        first, second = labels
        count = len(order)
        for own, other, weight in ((first, second, weights[0]), (second, first, weights[1])):
            if np.array_equal(other[:count], own[order]):
                self._known += 1
                self.looked.add("mixed")
                if abs(weight - (1 - share)) <= _NEAR < abs(weight - share):
                    self._count("weights of each other")
                return
        matches = [
            float(np.mean(other[:count] == own[order]))
            for own, other in ((first, second), (second, first))
        ]
        if max(matches) < _MOST_ALIKE and sorted(first.tolist()) == sorted(second.tolist()):
            self._known += 1
            self.looked.add("mixed")
            self._count("labels of other samples")

    def _count(self, what: str) -> None:
        """Count a step."""
        self._wrong[what] = self._wrong.get(what, 0) + 1

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        for label, steps in self._wrong.items():
            yield make_probe("mixed", steps, self._known, label=label, source=self._source)


def _find_parts(inputs: list[Table], held: list[torch.Tensor]) -> _Parts | None:
    """Return the parts of a batch that is mixed of the rows of another one, which is there yet."""
    for tensor in held:
        alike = [own for own in inputs if (len(own), own.size) == (len(tensor), tensor.numel())]
        rows = _rows(tensor) if alike else None
        for own in alike if rows is not None else ():
            if rows is not None and (found := _parts(own, rows)) is not None:
                return found
    return None


def _find_in_all(inputs: list[Table], held: list[torch.Tensor], share: float) -> _Parts | None:
    """Return the parts of a batch that is mixed of samples of all data, where those are there."""
    for own in inputs:
        width = own.shape[1]
        all_data = [t for t in held if len(t) > len(own) and t.numel() == len(t) * width]
        for rows in map(_rows, all_data[:_SETS]):
            found = unmix(own, rows, share) if rows is not None else None
            if found is not None:
                return share, found
    return None


def _is_batch(held: Any) -> bool:
    """Say whether something is a batch of numbers whose rows can be looked at."""
    return (
        type(held) is torch.Tensor
        and held.is_cpu
        and held.is_floating_point()
        and held.dim() > 1
        and len(held) >= _LEAST
        and held.numel() <= _LARGEST
    )


def _rows(held: torch.Tensor) -> Table | None:
    """Return the samples of a batch, each as one row; None where some are no numbers."""
    table = np.array(array_of(held.detach()), np.float64).reshape(len(held), -1)
    return table if table.shape[1] > 1 and np.isfinite(table).all() else None


def _has_labels(node: Node) -> bool:
    """Say whether a node is a loss of which the labels are known."""
    return _LABELS in node.metadata


def _shares(first: float, second: float) -> tuple[float, float] | None:
    """Return what two weights are of their sum; None where that makes no sense."""
    total = first + second
    return (first / total, second / total) if min(first, second) > 0 else None


def _parts(mixed: Table, rows: Table) -> _Parts | None:
    """
    Return the share of its own sample in each row, and which other one the rest is of.

    None where the rows are no such mixtures, or have shares of their own.
    """
    if mixed.shape != rows.shape or np.array_equal(mixed, rows):
        return None
    shares, order = [], []
    for place in range(min(_ROWS, len(rows))):
        found = _blend(mixed[place], rows[place], rows)
        found = found if found is not None else _paste(mixed[place], rows[place], rows)
        if found is None:
            return None
        share, other = found
        order.append(other)
        if other != place:
            shares.append(share)
    if not shares or max(shares) - min(shares) > _NEAR:
        return None
    return float(np.mean(shares)), order


def _blend(mixed: Table, own: Table, rows: Table) -> tuple[float, int] | None:
    """Return the share and the other sample of `share * own + (1 - share) * other`."""
    ways = own - rows  # from each other sample to its own
    lengths = (ways**2).sum(1)
    distances = mixed - rows
    shares = (distances * ways).sum(1) / np.maximum(lengths, 1e-30)
    rest = ((distances - shares[:, None] * ways) ** 2).sum(1)
    spread = max(float(((mixed - mixed.mean()) ** 2).sum()), 1e-30)
    best = int(np.argmin(np.where((shares > -_EXACT) & (shares < 1 + _EXACT), rest, np.inf)))
    if not -_EXACT < shares[best] < 1 + _EXACT or rest[best] > _EXACT**2 * spread:
        return None
    same = ((mixed - own) ** 2).sum() <= _EXACT**2 * spread
    return (1.0, int(np.argmin(lengths))) if same else (float(shares[best]), best)


def _paste(mixed: Table, own: Table, rows: Table) -> tuple[float, int] | None:
    """Return the share of numbers that are its own, and the sample that all others are of."""
    kept = mixed == own
    fits = np.flatnonzero((kept | (mixed == rows)).all(1))
    return (float(kept.mean()), int(fits[0])) if len(fits) == 1 else None
