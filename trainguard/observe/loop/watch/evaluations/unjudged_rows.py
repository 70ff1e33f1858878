"""Watches which rows of the sets that are evaluated no evaluation gets to."""

import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from trainguard.events.base import Event
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches, ServedBatch
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_SETS = 32  # sets that are followed
_SIZES = 2  # sizes of batches of a module: more than one says that it takes any
_TOLD = "judges"  # that a loss of torch was made of the rows, and its module takes other batches


@dataclass(slots=True)
class _Evaluated:
    """
    A data set whose rows a model was shown without gradients.

    size: how many rows it has. left: of these, the share that no pass has reached so far; 1 before
    the first pass that came to the end of its loader. seen: batches of the pass that is going on.
    learned: whether something was trained on it. judged: whether a loss was made of its rows.
    pairs: whether that was of a table of pairs, which needs batches of one size.
    """

    data: "weakref.ref[Any]"
    size: int
    source: str
    left: float = 1.0
    turn: int = -1
    seen: int = 0
    passes: int = 0
    learned: bool = False
    judged: bool = False
    pairs: bool = False
    modules: set[str] = field(default_factory=set)

    def add(self, served: ServedBatch, dropped: int, batches: int, shuffles: bool) -> None:
        """Take down a batch of a pass; the last one tells what the pass has left out."""
        if served.turn != self.turn:
            self.turn, self.seen = served.turn, 0
        self.seen += 1
        if self.seen == batches:
            share = dropped / self.size
            # What is left out in each order anew is reached by other passes.
            self.left = self.left * share if shuffles else min(self.left, share)
            self.passes += 1


class UnjudgedRows(Watcher):
    """
    The Probe event "unjudged": rows of a set that drop_last keeps from all its evaluations.

    Its label says "judges" where a loss of torch was made of the others, one by one, by a module
    that takes batches of other sizes, too.
    """

    makes = ("Probe:unjudged",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._sets: dict[int, _Evaluated] = {}
        self._number = -1  # of the batch that was looked at last
        self._own: _Evaluated | None = None  # the set that it is of
        self._sizes: dict[str, set[int]] = {}  # of the batches of each module

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down the batch that a pass was made of, and whether it may learn from that."""
        sizes = self._sizes.setdefault(forward.module, set())
        if len(sizes) < _SIZES:
            sizes.add(forward.samples)
        served = self._batches.recent[-1] if self._batches.recent else None
        if served is None:
            return
        if served.number != self._number:
            self._number, self._own = served.number, None
            with suppress(Exception):  # loaders and data sets of foreign kinds may be anything
                self._own = self._take(served, forward)
        if self._own is None:
            return
        self._own.modules.add(forward.module)
        # Once its iterator is gone, what is given may well be a batch that no loader has served.
        self._own.learned |= forward.gradients and served.iterator() is not None

    def finish(self) -> Iterator[Event]:
        """Return the sets that were evaluated to the end of their loader, and what is left."""
        for own in self._sets.values():
            if own.passes and not own.learned and not own.pairs:
                self.looked.add("unjudged")
                if own.left:
                    any_size = any(len(self._sizes[name]) > 1 for name in own.modules)
                    yield make_probe(
                        "unjudged",
                        round(own.left * own.size),
                        own.size,
                        step=own.passes,
                        label=_TOLD if own.judged and any_size else "",
                        source=own.source,
                    )

    def _take(self, served: ServedBatch, forward: Forward) -> _Evaluated | None:
        """Return the set that a batch is of, and count that in, where it is an evaluation's."""
        iterator = served.iterator()
        batcher = iterator._index_sampler if iterator is not None else None  # noqa: SLF001
        if type(batcher) is not BatchSampler or iterator is None:
            return None
        shuffles = type(batcher.sampler) is RandomSampler
        if not shuffles and type(batcher.sampler) is not SequentialSampler:
            return None
        own = self._find(iterator._dataset, served)  # noqa: SLF001
        if own is not None and self.recorder.steps and not forward.gradients:
            dropped = own.size % batcher.batch_size if batcher.drop_last else 0
            own.add(served, dropped, len(batcher), shuffles)
        return own

    def _find(self, data: Any, served: ServedBatch) -> _Evaluated | None:
        """Return what is known of a data set."""
        own = self._sets.get(id(data))
        if own is None or own.data() is not data:
            if len(self._sets) >= _SETS:
                return None
            own = _Evaluated(weakref.ref(data), len(data), served.source or caller(4))
            self._sets[id(data)] = own
        return own

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Take down that a loss was made of rows without gradients."""
        served = self._batches.recent[-1] if self._batches.recent else None
        own = self._own if served is not None and served.number == self._number else None
        if own is not None and tally.evaluation:
            own.judged = True
            own.pairs |= scores.dim() == 2 and scores.shape[0] == scores.shape[1] > 1
