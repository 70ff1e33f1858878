"""Watches pairs of input and target, whatever serves them: in each epoch, and in evaluations."""

import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.samples.centred_columns import CentredColumns
from trainguard.observe.loop.watch.samples.mirrored_places import MirroredPlaces
from trainguard.observe.loop.watch.samples.mirrored_targets import MirroredTargets
from trainguard.observe.loop.watch.samples.row_order import tells_an_order
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import hash_rows
from trainguard.observe.tools.patches import Patches

_ROWS = 16384  # that are hashed, of training and of evaluations each
_BYTES = 2**25  # of them
_TRAININGS = 4  # with so many rows each: a teacher comes before its student
LEAST = 64  # rows of an epoch whose targets are compared
_WIDTH = 8  # numbers in a row: fewer may be equal by chance
_VALUES = 8  # different numbers in a batch: bits and symbols may be equal by chance too
NOISE = 0.75  # of the changes that chance alone would make: more is no noise in the targets
_SAME_NAMES = 0.5  # of the rows, beyond chance, that one renaming of the classes may explain
_TAIL = 10  # an epoch may leave out one row in so many: what is left of a last batch
_MIXED = 8  # rows for each target at least, where renaming is looked for
_INPUTS = 4  # tensors that a pass is given
_PASSES = 4  # of one backward, that are told apart


def are_positions(batches: Collection[Sequence[int]]) -> bool:
    """
    Say whether targets are the same in each batch, but for those that a short one lacks.

    Positions in a batch are so, as contrastive losses have them.
    """
    longest = max(batches, key=len, default=())
    alike = len({tuple(sorted(targets)) for targets in batches}) < 2
    return alike or all(targets == longest[: len(targets)] for targets in batches)


@dataclass(slots=True)
class Epochs:
    """
    The targets of the rows of the first epoch, and of the second.

    An epoch ends where a row comes again. batches: the targets of each batch of the second.
    """

    first: dict[int, int] = field(default_factory=dict)
    second: dict[int, int] = field(default_factory=dict)
    batches: set[tuple[int, ...]] = field(default_factory=set)
    done: bool = False

    def add(self, rows: list[int], targets: list[int]) -> None:
        """Take in the pairs of a batch."""
        if len(set(rows)) < len(rows):
            self.done = True  # what is not unique has perhaps several targets
        begins = self.second or any(row in self.first for row in rows)
        epoch = self.second if begins else self.first
        if begins and any(row in self.second for row in rows):
            self.done = True
        if self.done:
            return
        epoch.update(zip(rows, targets, strict=True))
        if begins:
            self.batches.add(tuple(targets))

    def share(self) -> tuple[float, float]:
        """Return the share of rows that changed their target, and what chance would make of it."""
        both = [row for row in self.second if row in self.first]
        was, now = ([epoch[row] for row in both] for epoch in (self.first, self.second))
        counts = Counter(was)
        chance = 1 - sum((count / len(both)) ** 2 for count in counts.values())
        changed = sum(a != b for a, b in zip(was, now, strict=True)) / len(both)
        return changed, chance

    @property
    def is_shuffled_apart(self) -> bool:
        """Whether both epochs have the same rows and the same targets, and not the same pairs."""
        missing = len(self.first.keys() - self.second.keys())
        extra = len(self.second.keys() - self.first.keys())
        if len(self.first) < LEAST or _TAIL * (missing + extra) > len(self.first):
            return False
        was, now = Counter(self.first.values()), Counter(self.second.values())
        if (now - was).total() > extra or are_positions(self.batches):
            return False
        changed, chance = self.share()
        return changed > NOISE * chance > 0 and not self.is_renamed()

    def is_renamed(self) -> bool:
        """Say whether the classes have other names only, as clusters found anew do."""
        counts = Counter(self.first.values())
        if len(counts) * _MIXED > len(self.first):
            return False
        together: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for row in self.first.keys() & self.second.keys():
            together[self.first[row]][self.second[row]] += 1
        agree = sum(max(own.values()) for own in together.values()) / len(self.second)
        chance = max(counts.values()) / len(self.first)
        return agree > chance + _SAME_NAMES * (1 - chance)


@dataclass(slots=True)
class _EvaluatedPairs:
    """The pairs of the evaluations from one line: all of them, and those trained on before."""

    pairs: set[tuple[int, int]] = field(default_factory=set)
    known: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Pass:
    """What a pass was given and has made, until its loss is computed."""

    forward: Forward
    given: list[weakref.ref[torch.Tensor]]
    made: list[tuple[weakref.ref[torch.Tensor], tuple[int, int]]] = field(default_factory=list)

    def has_made(self, scores: torch.Tensor) -> bool:
        """Say whether scores are what it has made, or a view of it."""
        return any(ref() is not None and _memory_of(scores) == memory for ref, memory in self.made)


class SamplePairs(Watcher):
    """
    The Probe events "labels" and "mirrored", of targets that change, "held out", and "centred".

    "centred": a column of windows of a series that is made from so many moments after each, against
    so many before; the label says which column, and of which.
    """

    makes = ("Probe:labels", "Probe:mirrored", "Probe:held out", "Probe:centred")
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes: list[_Pass] = []  # since the last backward, whose loss is not known
        self._epochs: dict[str, Epochs] = {}
        self._mirrored: dict[str, MirroredTargets] = {}
        self._places: dict[str, MirroredPlaces] = {}
        self._windows_of: dict[str, CentredColumns] = {}
        self._trained: set[tuple[int, int]] = set()
        self._fresh: list[tuple[list[int], list[int]]] = []  # rows and targets trained on since
        self._evaluated: dict[str, _EvaluatedPairs] = {}
        self._unknown = False  # whether there was an evaluation of which the rows are not known
        self._windows = 1  # that have stepped
        self._rich: set[str] = set()  # modules whose inputs have many values
        self._left = {True: [_ROWS, _BYTES], False: [_ROWS, _BYTES]}  # training, evaluation
        self._refilled = 1  # windows that had stepped when there were last so many rows left
        self._refills = 1

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what a pass was given, until its loss is computed."""
        waiting = [one for one in self._passes if one.forward.gradients]
        self._unknown |= len(waiting) < len(self._passes)
        self._passes = waiting[1 - _PASSES :]
        if forward.gradients and min(self._left[True]) <= 0:
            self._refill()
        if tells_an_order(output):
            self._unknown |= not forward.gradients
        elif all(left > 0 for left in self._left[forward.gradients]):
            given = self.recorder.given[: _INPUTS + 1]
            seen = _Pass(forward, [weakref.ref(tensor) for tensor in given])
            self._passes.append(seen)
            with suppress(Exception):  # tensors of foreign kinds have no memory
                made = list(tensors_in(output))
                seen.made = [(weakref.ref(tensor), _memory_of(tensor)) for tensor in made]
        elif not forward.gradients:
            self._unknown = True

    def before_backward(self, loss: torch.Tensor) -> None:
        """Wait no more for the losses of passes before."""
        self._passes = [one for one in self._passes if not one.forward.gradients]

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, epochs in self._epochs.items():
            self.looked |= {"labels"} if len(epochs.second) >= LEAST else set()
            if epochs.is_shuffled_apart:
                changed, chance = epochs.share()
                label = f"{len(epochs.second)} rows that came again"
                yield make_probe("labels", changed, NOISE * chance, label=label, source=source)
        for source, mirrored in self._mirrored.items():
            mirrors, again = mirrored.counts
            self.looked |= {"mirrored"} if again else set()
            if mirrored.is_apart:
                yield make_probe("mirrored", mirrors, again, source=source)
        for source, places in self._places.items():
            self.looked |= {"mirrored"} if places.kept else set()
            if (found := places.find()) is not None:
                turned, sides, column = found
                label = f"{sides}, column {column} of the targets"
                yield make_probe("mirrored", turned, places.kept, label=label, source=source)
        for source, windows in self._windows_of.items():
            centred = windows.find()
            self.looked |= {"centred"} if windows.is_series else set()
            if centred is not None:
                label = f"column {centred.column}, of column {centred.of}"
                yield make_probe(
                    "centred", centred.after, centred.before, label=label, source=source
                )
        for source, own in ({} if self._unknown else self._evaluated).items():
            trained = len(self._settle())
            yield make_probe(
                "held out", len(own.known), len(own.pairs), step=trained, source=source
            )

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down the pairs that the first loss after a pass is made of."""
        seen = self._find_pass(scores)
        if seen is None:
            return
        self._passes.remove(seen)
        forward, refs, on_host = seen.forward, seen.given, self._batches.on_host
        learns = forward.gradients and value.requires_grad
        pairs: tuple[list[int], list[int]] | None = None
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            tensors = [tensor for ref in refs if (tensor := ref()) is not None]
            tensors, target = [*map(on_host, tensors)], on_host(target)
            if len(tensors) == len(refs) > 0 and _are_rows(tensors, target):
                pairs = self._hash(forward, tensors, target, learns=learns)
                if pairs is not None and learns:
                    mirrored = self._mirrored.setdefault(tally.source, MirroredTargets())
                    mirrored.add(tensors[0], target, pairs[0], alone=len(tensors) == 1)
                    # What was made of the output since may have turned its places back.
                    if len(tensors) == 1 and seen.has_made(scores):
                        places = self._places.setdefault(tally.source, MirroredPlaces())
                        places.add(tensors[0], target)
                        windows = self._windows_of.setdefault(tally.source, CentredColumns())
                        windows.add(tensors[0], target)
        if pairs is None:
            self._unknown |= not learns
        elif learns:
            self._train(tally.source, *pairs)
        else:
            own = self._evaluated.setdefault(tally.source, _EvaluatedPairs())
            both = set(zip(*pairs, strict=True))
            own.pairs |= both
            own.known |= both & self._settle()

    def _find_pass(self, scores: torch.Tensor) -> _Pass | None:
        """Return the pass that has made scores; the only one may have, whatever became of it."""
        with suppress(Exception):  # tensors of foreign kinds have no memory
            for one in reversed(self._passes):
                if one.has_made(scores):
                    return one
        return self._passes[0] if len(self._passes) == 1 else None

    def _train(self, source: str, rows: list[int], targets: list[int]) -> None:
        """Take down pairs that are trained on; another optimizer is another training."""
        stepped = self._count_stepped()
        if stepped > self._windows:
            self._windows = stepped
            self._trained.clear()
            self._fresh.clear()
            self._epochs.clear()
        self._fresh.append((rows, targets))  # there may be no evaluation that asks for it
        epochs = self._epochs.setdefault(source, Epochs())
        if not epochs.done:
            epochs.add(rows, targets)

    def _count_stepped(self) -> int:
        """Return how many optimizers have made steps."""
        return sum(1 for window in self.recorder.windows if window.index)

    def _refill(self) -> None:
        """Hash rows again where another optimizer has begun since, as often as there are rows."""
        stepped = self._count_stepped()
        if stepped > self._refilled and self._refills < _TRAININGS:
            self._refilled, self._refills = stepped, self._refills + 1
            self._left[True] = [_ROWS, _BYTES]

    def _settle(self) -> set[tuple[int, int]]:
        """Return all pairs that were trained on."""
        fresh, self._fresh = self._fresh, []
        for rows, targets in fresh:
            self._trained.update(zip(rows, targets, strict=True))
        return self._trained

    def _hash(
        self, forward: Forward, tensors: list[torch.Tensor], target: torch.Tensor, *, learns: bool
    ) -> tuple[list[int], list[int]] | None:
        """Return a number for each row of what a module was given, and for its target; or None."""
        first, left = tensors[0], self._left[learns]
        if forward.module not in self._rich:
            if len(torch.unique(first[:2].detach())) <= _VALUES:
                return None
            self._rich.add(forward.module)
        left[0] -= first.shape[0]
        left[1] -= sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, target))
        rows = self._batches.rows_of(forward, tensors)
        if target.dim() == 1 and not target.is_floating_point():
            return rows, target.tolist()
        return rows, hash_rows(target.reshape(len(target), -1).double())


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what a view of a tensor has in common with it until it is written to."""
    return tensor.untyped_storage().data_ptr(), tensor._version  # noqa: SLF001 no public one


def _are_rows(tensors: list[torch.Tensor], target: Any) -> bool:
    """Say whether tensors and a target have a row for each sample, and the first has long ones."""
    first = tensors[0]
    if len(tensors) > _INPUTS or not isinstance(target, torch.Tensor) or target.requires_grad:
        return False
    plain = all(
        tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.dim() > 0
        for tensor in (*tensors, target)
    )
    if not plain or not first.is_floating_point() or first.numel() < _WIDTH * first.shape[0]:
        return False
    return all(tensor.shape[0] == first.shape[0] > 1 for tensor in (*tensors, target))
