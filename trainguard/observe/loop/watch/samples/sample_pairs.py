"""Watches pairs of input and target, whatever serves them: in each epoch, and in evaluations."""

import weakref
from collections import Counter
from collections.abc import Iterable
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
from trainguard.observe.loop.watch.samples.shared_rows import BITS, bits_of_row
from trainguard.observe.loop.watch.samples.target_epochs import LEAST, NOISE, Epochs
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import hash_rows
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_ROWS = 16384  # that are hashed, of training and of evaluations each
_BYTES = 2**25  # of them
_TRAININGS = 4  # with so many rows each: a teacher comes before its student
_WIDTH = 8  # numbers in a row: fewer may be equal by chance
_VALUES = 8  # different numbers in a batch: bits and symbols may be equal by chance too
_INPUTS = 4  # tensors that a pass is given
_TRIED = 16  # rows of tokens whose numbers are counted, and passes of a module
_TOKENS = (torch.int32, torch.int64)
_ALIKE = 0.002  # of the rows of tokens: as a few thousand different ones have in batches of 32
_PASSES = 4  # of one backward, that are told apart


@dataclass(slots=True)
class _EvaluatedPairs:
    """The pairs of the evaluations from one line: all of them, and those trained on before."""

    pairs: set[tuple[int, int]] = field(default_factory=set)
    known: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class _BareRows:
    """The rows of evaluations without a loss, as for an accuracy alone: all, and those known."""

    rows: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Pass:
    """
    What a pass was given and has made, until its loss is computed.

    rows: of an evaluation, which may have no loss; targets: those that a loader served beside them;
    source: where it was.
    """

    forward: Forward
    given: list[weakref.ref[torch.Tensor]]
    rows: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    source: str = ""
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
        self._trained_rows: set[int] = set()
        self._fresh: list[tuple[list[int], list[int]]] = []  # rows and targets trained on since
        self._evaluated: dict[str, _EvaluatedPairs] = {}
        self._bare = _BareRows()
        self._tokens = [0, 0]  # rows of them that were trained on, and those twice in a batch
        self._unknown = False  # whether there was an evaluation of which the rows are not known
        self._windows = 1  # that have stepped
        self._rich: set[str] = set()  # modules whose inputs have many values
        self._poor = Counter[str]()  # passes of modules whose inputs had few
        self._learners: set[str] = set()  # modules: a teacher is shown what is learned from, too
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
        self._put_aside()
        self._passes = self._passes[1 - _PASSES :]
        if forward.gradients and min(self._left[True]) <= 0:
            self._refill()
        if tells_an_order(output):
            self._unknown |= not forward.gradients
        elif all(left > 0 for left in self._left[forward.gradients]):
            given = self.recorder.given[: _INPUTS + 1]
            seen = _Pass(forward, [weakref.ref(tensor) for tensor in given])
            if forward.gradients:
                self._learners.add(forward.module)
            else:
                self._read(seen, given)
            self._passes.append(seen)
            with suppress(Exception):  # tensors of foreign kinds have no memory
                made = list(tensors_in(output))
                seen.made = [(weakref.ref(tensor), _memory_of(tensor)) for tensor in made]
        elif not forward.gradients:
            self._unknown = True

    def _read(self, seen: _Pass, given: list[torch.Tensor]) -> None:
        """Take down the rows that an evaluation is given, and the targets that came with them."""
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            tensors = [*map(self._batches.on_host, given)]
            if not tensors or not _have_rows(tensors):
                return
            seen.rows = self._batches.rows_of(seen.forward, tensors)
            if len(tensors) > 1 or seen.forward.module not in self._learners:
                return
            served = self._batches.origin(tensors[0])
            targets = served.alive()[1:] if served is not None and served.paired else []
            if targets and _have_rows(tensors, *targets) and self._is_rich(seen, tensors[0]):
                seen.targets, seen.source = _hash_targets(targets[0]), caller()

    def _put_aside(self) -> None:
        """Wait no more for the losses of evaluations: of those without one the rows are known."""
        for one in [one for one in self._passes if not one.forward.gradients]:
            self._unknown |= not one.rows
            self._left[False][0] -= len(one.rows)
            self._settle()
            if one.targets:
                self._evaluate(one.source, one.rows, one.targets)
            else:
                self._bare.rows.update(one.rows)
                self._bare.known.update(self._trained_rows.intersection(one.rows))
        self._passes = [one for one in self._passes if one.forward.gradients]

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
        self._put_aside()
        # Other rows may be held out; and of a few texts that there can be, all are everywhere.
        silent = self._unknown or self._bare.rows > self._bare.known
        silent |= self._tokens[1] > _ALIKE * self._tokens[0]
        for source, own in ({} if silent else self._evaluated).items():
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
                pairs = self._hash(seen, tensors, target, learns=learns)
                measured = tensors[0].is_floating_point()
                if pairs is not None and learns and not measured:
                    self._tokens[0] += len(pairs[0])
                    self._tokens[1] += len(pairs[0]) - len(set(pairs[0]))
                elif pairs is not None and learns:
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
            self._evaluate(tally.source, *pairs)

    def _evaluate(self, source: str, rows: list[int], targets: list[int]) -> None:
        """Take down pairs that are evaluated, and those of them that were trained on before."""
        own = self._evaluated.setdefault(source, _EvaluatedPairs())
        both = set(zip(rows, targets, strict=True))
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
            self._trained_rows.clear()
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
            self._trained_rows.update(rows)
        return self._trained

    def _hash(
        self, seen: _Pass, tensors: list[torch.Tensor], target: torch.Tensor, *, learns: bool
    ) -> tuple[list[int], list[int]] | None:
        """Return a number for each row of what a module was given, and for its target; or None."""
        first, left = tensors[0], self._left[learns]
        if not self._is_rich(seen, first):
            return None
        left[0] -= first.shape[0]
        left[1] -= sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, target))
        return self._batches.rows_of(seen.forward, tensors), _hash_targets(target)

    def _is_rich(self, seen: _Pass, first: torch.Tensor) -> bool:
        """Say whether the inputs of a module have so many values that samples differ in them."""
        module = seen.forward.module
        if module in self._rich or self._poor[module] >= _TRIED:
            return module in self._rich
        rich = len(torch.unique(first[:2].detach())) > _VALUES and _tells_samples(first)
        self._rich |= {module} if rich else set()
        self._poor[module] += not rich
        return rich


def _hash_targets(target: torch.Tensor) -> list[int]:
    """Return a number for the target of each row."""
    if target.dim() == 1 and not target.is_floating_point():
        numbers: list[int] = target.tolist()
        return numbers
    return hash_rows(target.detach().reshape(len(target), -1).double())


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what a view of a tensor has in common with it until it is written to."""
    return tensor.untyped_storage().data_ptr(), tensor._version  # noqa: SLF001 no public one


def _tells_samples(first: torch.Tensor) -> bool:
    """Say whether two rows of an input are hardly ever equal by chance; of tokens it is counted."""
    if first.is_floating_point():
        return True
    few = sorted(bits_of_row(row) for row in first.detach()[:_TRIED])
    return few[len(few) // 2] >= BITS


def _are_rows(tensors: list[torch.Tensor], target: Any) -> bool:
    """Say whether tensors and a target have a row for each sample, and the first has long ones."""
    is_target = isinstance(target, torch.Tensor) and not target.requires_grad
    return is_target and _have_rows(tensors, target)


def _have_rows(tensors: list[torch.Tensor], *targets: torch.Tensor) -> bool:
    """Say whether tensors have a row for each sample, and the first has long ones."""
    first = tensors[0]
    plain = len(tensors) <= _INPUTS and all(
        tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.dim() > 0
        for tensor in (*tensors, *targets)
    )
    read = first.is_floating_point() or first.dtype in _TOKENS
    if not plain or not read or first.numel() < _WIDTH * first.shape[0]:
        return False
    return all(tensor.shape[0] == first.shape[0] > 1 for tensor in (*tensors, *targets))
