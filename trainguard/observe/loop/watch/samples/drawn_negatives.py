"""Watches scores of pairs, as of users and items: whether what is pushed down is pushed up too."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.fingerprint import Hashes, hashes_of_rows

_STEPS = 512  # whose pairs are looked at
_MOST = 2**20  # pairs of each kind
_TRIES = 4  # calls with gradients, before a run that scores no pairs is left alone
_SIDES = 3  # numbers of a pair, or of a triple, at most
_EACH_ONCE = 0.9  # of all that is pushed up, before any of it comes again: last batches are dropped
_LEAST = 256  # pairs that are pushed down
_DRAWS = 16  # of each item, in the mean: that one of all never comes is one in millions
_BEYOND = 0.05  # of the items that are pushed up
_NONE = np.empty(0, np.int64)
_INTEGERS = (torch.int64, torch.int32)


Items = np.ndarray[Any, Any]


class DrawnNegatives(Watcher):
    """
    The Probe event "drawn negatives", of calls that push the scores of all their pairs one way.

    measured: the share of the pairs pushed down that are pushed up in other calls, of which each
    comes once before any comes again, as facts do and counts of words do not; reference: how many
    were pushed down. And "narrow negatives": the items that are pushed down are just as many as
    another table of the module has rows, as measured, and fewer than there are, as reference.
    """

    makes = ("Probe:drawn negatives", "Probe:narrow negatives")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._calls = self._scored = 0
        self._up: list[Hashes] = []
        self._down: list[Hashes] = []
        self._items = {True: _NONE, False: _NONE}  # that are pushed up, and down
        self._tables: set[int] = set()  # rows of the embeddings
        self._is_mixed = False  # whether a call pushed its scores both ways
        self._label = self._source = ""

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Ask the scores of pairs to tell when they are pulled."""
        if self.recorder.steps >= _STEPS or (self._calls >= _TRIES and not self._scored):
            self.recorder.dismiss(self)
            return
        if not forward.gradients:
            return
        self._calls += 1
        with suppress(Exception):  # whatever somebody's models are given
            for scores, pairs in _pairs_of(inputs, output):
                self._scored += 1
                self._label = self._label or forward.module
                self._source = self._source or forward.source
                tables = (part for part in module.modules() if isinstance(part, nn.Embedding))
                self._tables = self._tables or {int(table.num_embeddings) for table in tables}
                items = np.array(array_of(pairs[:, -1]))
                self._listen(scores, hashes_of_rows(pairs), items)

    def finish(self) -> Iterable[Event]:
        """Compare both kinds."""
        if self._is_mixed or not (self._up and self._down):
            return
        yield from self._find_narrow()
        pushed_up, down = np.concatenate(self._up), np.concatenate(self._down)
        known, first = np.unique(pushed_up, return_index=True)
        again = np.setdiff1d(np.arange(len(pushed_up)), first)
        if len(down) < _LEAST or (len(again) and again[0] < _EACH_ONCE * len(known)):
            return
        self.looked.add("drawn negatives")
        share = float(np.isin(down, known).mean())
        if share:
            yield make_probe(
                "drawn negatives", share, len(down), label=self._label, source=self._source
            )

    def _find_narrow(self) -> Iterable[Event]:
        """Yield that items are drawn from among as many as there are of something else."""
        up, down = self._items[True], self._items[False]
        drawn, most = int(down.max()) + 1, int(up.max()) + 1
        rows = min((size for size in self._tables if size >= most), default=0)
        # All of them were drawn, so that many more draws have met none beyond.
        every = len(down) == drawn and sum(map(len, self._down)) >= _DRAWS * drawn
        if rows and every:
            self.looked.add("narrow negatives")
            beyond = int((up >= drawn).sum())
            if drawn in self._tables - {rows} and beyond >= _BEYOND * len(up):
                place = {"label": self._label, "source": self._source}
                yield make_probe("narrow negatives", drawn, rows, **place)

    def _listen(self, scores: torch.Tensor, pairs: Hashes, items: Items) -> None:
        """Ask scores to tell which way they are pulled."""

        def on_gradient(gradient: torch.Tensor) -> None:
            """Look at it, and change nothing."""
            self._look(gradient, pairs, items)

        scores.register_hook(on_gradient)  # type: ignore[no-untyped-call]

    @shielded
    def _look(self, gradient: torch.Tensor, pairs: Hashes, items: Items) -> None:
        """Take down the pairs whose scores are pulled, where all go one way."""
        if self._is_mixed or not self.recorder.patches.live:
            return
        with suppress(Exception):  # of several gradients at once, which have no numbers
            signs = np.sign(array_of(gradient.detach().reshape(-1)))
            self._is_mixed = bool((signs > 0).any() and (signs < 0).any())
            if self._is_mixed:
                self.recorder.dismiss(self)
                return
            for kept, found in ((self._up, signs < 0), (self._down, signs > 0)):
                if found.any() and sum(map(len, kept)) < _MOST:
                    kept.append(np.unique(pairs[found]))
                    way = kept is self._up
                    self._items[way] = np.union1d(self._items[way], items[found])


def _pairs_of(inputs: Any, output: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield scores that learn, with a row of numbers for each: of users and items, mostly."""
    sides = list(tensors_in(inputs))
    scores = [each for each in tensors_in(output) if _is_plain(each) and each.grad_fn is not None]
    if not all(map(_is_plain, sides)) or any(side.dtype not in _INTEGERS for side in sides):
        return
    if len(scores) == 1 and len(sides) == 1 and sides[0].dim() == 2:
        if 1 < sides[0].shape[1] <= _SIDES and scores[0].numel() == len(sides[0]):
            yield scores[0], sides[0]
    elif len(scores) == 1 and 1 < len(sides) <= _SIDES:
        yield from _beside(scores[0], sides)
    elif len(scores) == 2 and len(sides) == 3:  # of one user, an item and another one
        yield from _beside(scores[0], [sides[0], sides[1]])
        yield from _beside(scores[1], [sides[0], sides[2]])


def _beside(
    scores: torch.Tensor, sides: list[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield scores with the rows of numbers beside each other, where there are as many."""
    first, *others = sides
    first = first.reshape(*first.shape, *[1] * (others[0].dim() - first.dim()))
    beside = torch.broadcast_tensors(first, *others)  # type: ignore[no-untyped-call]
    rows = torch.stack([side.reshape(-1) for side in beside], 1)
    if len(rows) == scores.numel():
        yield scores, rows


def _is_plain(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has numbers that can be read at once."""
    return type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout == torch.strided
