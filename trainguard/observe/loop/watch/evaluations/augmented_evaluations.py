"""Watches evaluations whose data set serves other inputs for the same samples each time."""

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import SequentialSampler

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches, ServedBatch
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import fingerprint, hash_rows
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_BATCHES = 4  # of a pass that are looked at
_PASSES = 8  # through a loader
_SETS = 8
_LARGEST = 2**22  # elements of a batch
_LEAST = 8  # rows of a pass

_Rows = tuple[list[int], int]  # hashes of the rows of an input, and of all that is beside it


@dataclass(slots=True)
class _EvaluatedSet:
    """
    What a data set served, batch by batch, at the latest evaluation and at the one before.

    again, other: rows that came again beside the same targets, and those of them that differ.
    """

    data: Callable[[], Any]
    kind: str
    source: str
    turn: int = -1
    passes: int = 0
    before: list[_Rows] = field(default_factory=list)
    now: list[_Rows] = field(default_factory=list)
    again: int = 0
    other: int = 0
    unlike: bool = False  # whether targets differed, so that these are other samples

    def add(self, turn: int, rows: list[int], beside: int) -> None:
        """Take down a batch, and compare it with that of the pass before."""
        if turn != self.turn:
            self.before, self.now, self.turn = self.now, [], turn
            self.passes += 1
        place = len(self.now)
        if place >= _BATCHES:
            return
        self.now.append((rows, beside))
        if place < len(self.before):
            known, label = self.before[place]
            self.unlike |= label != beside or len(known) != len(rows)
            self.again += len(rows)
            self.other += sum(a != b for a, b in zip(known, rows, strict=False))


class AugmentedEvaluations(Watcher):
    """
    The Probe event "augmented": rows of evaluations that differ from those of the one before.

    They are served by a loader that goes through a data set in order, beside the same targets; or
    they are given to a model by hand, and a loss function is given the same targets for them.
    """

    makes = ("Probe:augmented",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._sets: OrderedDict[int | str, _EvaluatedSet] = OrderedDict()
        self._rows: list[int] = []  # of the latest input in an evaluation, by no loader
        self._shape = torch.Size()  # of it
        self._hashed: Counter[int] = Counter()  # inputs, by the steps before an evaluation

    def install(self, patches: Patches) -> None:
        """Ask for the watcher of loaders, and to be told of losses."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what an evaluation is given as it was served."""
        given = next(tensors_in(inputs), None)
        served = self._batches.origin(given) if given is not None and given.dim() > 1 else None
        self._rows = []
        if served is None and given is not None and given.dim() > 1 and self.recorder.steps:
            with suppress(Exception):  # tensors of foreign kinds may be anything
                self._hash(given)
        if served is None or given is None or not self.recorder.steps:
            return
        with suppress(Exception):  # loaders and tensors of foreign kinds may be anything
            self._take_down(served, given)

    def finish(self) -> Iterable[Event]:
        """Return the data sets that never served the same."""
        for own in self._sets.values():
            self.looked |= {"augmented"} if own.again >= _LEAST else set()
            if own.again >= _LEAST and own.passes > 2 and own.other == own.again and not own.unlike:
                yield make_probe(
                    "augmented", own.other, own.passes, label=own.kind, source=own.source
                )

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: Any, _value: torch.Tensor
    ) -> None:
        """Take down an input of an evaluation by hand, and its targets."""
        rows, self._rows = self._rows if tally.evaluation else [], []
        if not rows or not isinstance(target, torch.Tensor):
            return
        with suppress(Exception):  # tensors of foreign kinds may be anything
            if not _are_labels(self._shape, [target]):
                return
            own = self._sets.get(tally.source)
            if own is None:
                own = _EvaluatedSet(lambda: None, "the script", tally.source)
                self._sets[tally.source] = own
                if len(self._sets) > _SETS:
                    self._sets.popitem(last=False)
            if own.passes <= _PASSES:
                own.add(self.recorder.steps, rows, fingerprint([target]))

    def _hash(self, given: torch.Tensor) -> None:
        """Take down the rows of an input, of so many evaluations and of their first batches."""
        step = self.recorder.steps
        fits = len(self._hashed) <= _PASSES and self._hashed[step] < _BATCHES * _SETS
        if fits and given.is_cpu and given.numel() <= _LARGEST:
            self._hashed[step] += 1
            self._rows, self._shape = hash_rows(given), given.shape

    def _take_down(self, served: ServedBatch, given: torch.Tensor) -> None:
        """Take down a batch of a loader that keeps the order of its data set."""
        iterator, tensors = served.iterator(), served.alive()
        if iterator is None or not isinstance(iterator._index_sampler.sampler, SequentialSampler):  # noqa: SLF001
            return
        beside = [tensor for tensor in tensors if tensor is not given]
        fits = len(beside) == len(tensors) - 1 and _are_labels(given.shape, beside)
        if not fits or not given.is_cpu or given.numel() > _LARGEST:
            return
        data = iterator._dataset  # noqa: SLF001
        own = self._sets.get(id(data))
        if own is None or own.data() is not data:
            kind = type(getattr(data, "dataset", data)).__name__
            own = _EvaluatedSet(weakref.ref(data), kind, served.source or caller(5))
            self._sets[id(data)] = own
            if len(self._sets) > _SETS:
                self._sets.popitem(last=False)
        if own.passes <= _PASSES:
            own.add(served.turn, hash_rows(given), fingerprint(beside))


def _are_labels(given: torch.Size, beside: list[torch.Tensor]) -> bool:
    """Say whether targets stand beside an input that are not of its own shape, and vary."""
    rows = [t for t in beside if t.is_cpu and t.dim() and len(t) == given[0]]
    varied = any(bool((t != t[:1]).any()) for t in rows)
    return varied and len(rows) == len(beside) and all(t.shape != given for t in rows)
