"""Watches padding: whether its number comes as data too, and whether losses count its places."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.losses.row_ends import RowEnds, are_ended, ends_of, find_padding
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches, tell_before

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**20  # elements of what is read
_LEAST = 4  # places of a batch at which it comes by itself
_MOST_CALLS = 8  # of losses, between two backward passes


@dataclass(slots=True)
class _PaddingRow:
    """
    A row of an embedding that stands for padding; source: where its loss is computed.

    steps: that were looked at. learned: those in which it came between others, and was a target
    that is learned; left_out: a target that is not, where each target is the token after.
    """

    source: str
    steps: int = 0
    learned: int = 0
    left_out: int = 0

    def count(
        self, rows: torch.Tensor, target: torch.Tensor, number: int, *, is_ignored: bool
    ) -> None:
        """Count a step by what was read, and what was to be learned."""
        self.steps += 1
        if not comes_inside(rows, number):
            return
        table = target.reshape(rows.shape) if target.numel() == rows.numel() else None
        if is_ignored:
            self.left_out += table is not None and _follows(table, rows, number)
        elif table is not None:
            self.learned += comes_inside(table, number)
        else:
            self.learned += target.numel() in rows.shape and bool((target == number).any())


@dataclass(frozen=True, slots=True)
class _PaddedLoss:
    """A call of a loss of classes: its scores and target as they were given."""

    tally: LossCalls
    scores: torch.Tensor
    target: torch.Tensor

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.scores.shape[1])

    @property
    def ignored(self) -> int:
        """The target that the loss leaves out."""
        return self.tally.ignored


@dataclass(slots=True)
class _Packed:
    """
    Sequences that were packed by their lengths, and one loss over all their places, or their last.

    source: where the loss is. steps: that were looked at; counted: those in which the loss counts
    all the scores that were made beyond the ends; scores: of these steps, and those beyond.
    """

    source: str
    steps: int = 0
    counted: int = 0
    scores: int = 0
    beyond: int = 0

    def count(self, sizes: torch.Tensor, call: _PaddedLoss, last: bool) -> None:
        """Count a step, by how many rows were left at each moment."""
        rows, moments = int(sizes[0]), len(sizes)
        scores = rows if last else rows * moments
        beyond = rows - int(sizes[-1]) if last else scores - int(sizes.sum())
        if not beyond or call.target.numel() != scores:
            return
        self.steps += 1
        if bool((call.target == call.ignored).any()) or call.tally.reduction == "none":
            return
        # What is unpacked holds zeros beyond the ends, so that the scores there are all the same.
        _, times = torch.unique(
            call.scores.movedim(1, -1).reshape(scores, -1), dim=0, return_counts=True
        )
        if int(times.max()) == beyond > 1:
            self.counted += 1
            self.scores += scores
            self.beyond += beyond


@dataclass(slots=True)
class _Filled:
    """
    Targets of each place of padded rows: whether those of padding are all one class, and learned.

    source: where the loss is. steps: that were looked at; counted: those in which the padding
    counts as a class that others have too, or after a target that tells the end of its row, where
    that is looked at; targets: of these steps, and those of padding.
    """

    source: str
    ended: bool = False
    steps: int = 0
    counted: int = 0
    targets: int = 0
    padding: int = 0

    def count(self, padding: torch.Tensor, call: _PaddedLoss) -> None:
        """Count a step, by where the padding of its rows is."""
        target = call.target
        turned = target.dim() == 2 and target.shape != padding.shape
        table = (target.T if turned else target).reshape(padding.shape)
        number = int(table[padding][0])
        own, others = table[padding] == number, table[~padding] == number
        self.steps += 1
        options = call.tally.options  # None where there are too many weights to be kept
        weighed = options is None or options.get("weight") is not None
        weighed = weighed or call.tally.reduction == "none"
        is_class = 0 <= number < call.classes and number != call.ignored
        told = are_ended(table, padding) if self.ended else int(others.sum()) >= _LEAST
        if bool(own.all()) and is_class and not weighed and told:
            self.counted += 1
            self.targets += table.numel()
            self.padding += int(padding.sum())


class PaddingRows(Watcher):
    """
    The Probe events "padding", "packed", "filled" and "ended".

    They tell of a row that is never learned, and comes as any other does; of a loss that counts
    scores that were made beyond the ends of packed sequences; and of ends of sequences that a loss
    leaves out, as they are the number of padding too.
    """

    makes = ("Probe:padding", "Probe:packed", "Probe:filled", "Probe:ended")
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._calls: list[_PaddedLoss] = []
        self._rows: dict[tuple[str, int], _PaddingRow] = {}
        self._unpacked: list[torch.Tensor] = []  # how many rows are left at each moment
        self._packed: dict[tuple[str, bool], _Packed] = {}
        self._filled: dict[tuple[str, str], _Filled] = {}
        self._blank: list[torch.Tensor] = []  # where inputs of features are all zero
        self._ends: dict[str, RowEnds] = {}
        self._given: list[torch.Tensor] = []  # whole numbers that modules were given, masks too

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
        patches.redirect(rnn.pad_packed_sequence, tell_before(self._see_unpacking))

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Remember what is to be learned until the next backward."""
        if tally.function not in CROSS_ENTROPIES or self.recorder.age not in _STEPS:
            return
        fits = target.is_cpu and not target.is_floating_point() and target.numel() <= _LARGEST
        if fits and value.requires_grad and scores.dim() > 1:
            call = _PaddedLoss(tally, scores.detach(), target.detach())
            self._calls = [*self._calls[1 - _MOST_CALLS :], call]

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what may be a mask of padding."""
        if forward.gradients and self.recorder.age in _STEPS:
            rows = [t for t in tensors_in(inputs) if t.is_cpu and has_rows(t)]
            tables = (t for t in rows if t.dim() == 2 and not t.is_floating_point())
            self._given = [*self._given, *tables][-_MOST_CALLS:]
            features = (t for t in rows if t.dim() == 3 and t.is_floating_point())
            blank = ((t == 0).all(-1) for t in features if t.numel() <= _LARGEST)
            self._blank = [*self._blank, *blank][-_MOST_CALLS:]

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what embeddings were read with on the way to a loss."""
        calls, self._calls = self._calls, []
        unpacked, self._unpacked = self._unpacked, []
        given, self._given = [*self._given, *self._beside()], []
        blank, self._blank = self._blank, []
        if not calls or loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        for sizes in unpacked:
            self._look_at_packed(sizes, calls)
        for padding in blank:
            self._look_at_filled(padding, calls, "perhaps")
        for lengths in self._find_lengths():
            padding = torch.arange(int(lengths.max())) >= lengths[:, None]
            self._look_at_filled(padding, calls)
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        for node in nodes if len(nodes) < _MOST_NODES else ():
            if autograd_graph.kind_of(node) == "EmbeddingBackward":
                self._look_at(node, calls, given)

    def _find_lengths(self) -> Iterator[torch.Tensor]:
        """Yield what a loader has served that may be the lengths of the rows of a batch."""
        for each in self.recorder.watcher(Batches).latest():
            whole = each.is_cpu and each.dim() == 1 and not each.is_floating_point()
            if whole and not each.is_complex() and len(each) > 1:
                least, most = int(each.min()), int(each.max())
                if 0 < least < most <= _LARGEST // len(each):
                    yield each

    def _beside(self) -> list[torch.Tensor]:
        """Return what a loader has served beside a batch, and a model perhaps never sees."""
        tables = self.recorder.watcher(Batches).latest()
        return [t for t in tables if t.is_cpu and t.dim() == 2 and not t.is_floating_point()]

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for (name, number), row in self._rows.items():
            if row.learned or row.left_out:
                yield Probe(
                    probe="padding",
                    measured=float(max(row.learned, row.left_out)),
                    reference=float(row.steps),
                    step=number,
                    label=f"{name} {'learned' if row.learned >= row.left_out else 'left out'}",
                    source=row.source,
                )

        for (_, last), packed in self._packed.items():
            self.looked |= {"packed"} if packed.steps else set()
            if 2 * packed.counted > packed.steps:
                yield Probe(
                    probe="packed",
                    measured=float(packed.beyond),
                    reference=float(packed.scores),
                    step=packed.counted,
                    label="last" if last else "all",
                    source=packed.source,
                )

        for (_, label), filled in self._filled.items():
            self.looked |= {"filled"} if filled.steps else set()
            if 2 * filled.counted > filled.steps:
                yield Probe(
                    probe="filled",
                    measured=float(filled.padding),
                    reference=float(filled.targets),
                    step=filled.counted,
                    label=label,
                    source=filled.source,
                )

        for name, ends in self._ends.items():
            if ends.are_left_out:
                yield make_probe("ended", ends.left_out, ends.steps, label=name, source=ends.source)

    def _see_unpacking(self, sequence: Any, *_: Any, **__: Any) -> None:
        """Remember what a `pad_packed_sequence` unpacks."""
        if self.recorder.is_looking() and self.recorder.age in _STEPS:
            self._unpacked = [*self._unpacked[1 - _MOST_CALLS :], sequence.batch_sizes]

    def _look_at_packed(self, sizes: torch.Tensor, calls: list[_PaddedLoss]) -> None:
        """Look at sequences that were packed, beside the losses over all their places."""
        for call in calls:
            for last in (False, True) if len(sizes) > 1 else ():
                source = call.tally.source
                own = self._packed.setdefault((source, last), _Packed(source))
                own.count(sizes, call, last)

    def _look_at_filled(
        self, padding: torch.Tensor, calls: list[_PaddedLoss], label: str = ""
    ) -> None:
        """
        Look at the targets of rows that end in padding, and not all at once.

        label: "perhaps" where it may be none, "ended" where targets are to tell the ends.
        """
        ends = padding.flip(1).int().cumprod(1).flip(1).bool()
        lengths = ends.sum(1)
        if not torch.equal(ends, padding) or int(lengths.max()) in (int(lengths.min()), 0):
            return
        for call in calls:
            if call.target.numel() == padding.numel():
                source = call.tally.source
                new = _Filled(source, ended=label == "ended")
                self._filled.setdefault((source, label), new).count(padding, call)

    def _look_at(self, node: Node, calls: list[_PaddedLoss], given: list[torch.Tensor]) -> None:
        """Look at one reading of an embedding, beside the losses that are about its tokens."""
        weight = getattr(node.next_functions[0][0], "variable", None)
        with suppress(RuntimeError):  # what was changed since cannot be read
            read = autograd_graph.saved(node, "indices")
            padding = autograd_graph.signed(node._saved_padding_idx)  # noqa: SLF001
            if (
                weight is None
                or read is None
                or not read.is_cpu
                or read.dim() < 2
                or read.numel() > _LARGEST
            ):
                return
            rows = read.reshape(-1, read.shape[-1])
            own = find_padding(rows, padding)
            alike = [call for call in calls if call.classes == len(weight)]
            if ends_of(rows, own, known=padding >= 0) is not None:
                ended = are_ended(rows, rows == own)
                self._look_at_filled(rows == own, alike, "" if ended else "ended")
            if padding >= 0:
                others = [call for call in calls if call.classes != len(weight)]
                self._look_at_filled(rows == padding, others)
            for call in calls:
                if call.classes == len(weight):
                    self.looked.add("ended")
                    name = self.recorder.names.parameter(weight)
                    ends = self._ends.setdefault(name, RowEnds(call.tally.source))
                    masks = [table for table in given if table.shape == rows.shape]
                    ends.count(rows, call.target, call.ignored, masks)
                for number in {padding, call.ignored} if call.classes == len(weight) else ():
                    if 0 <= number < call.classes:
                        self.looked.add("padding")
                        key = self.recorder.names.parameter(weight), number
                        row = self._rows.setdefault(key, _PaddingRow(call.tally.source))
                        row.count(rows, call.target, number, is_ignored=number == call.ignored)


def comes_inside(rows: torch.Tensor, number: int) -> bool:
    """
    Say whether a number comes between others, mostly by itself, whichever axis is that of time.

    Padding comes in runs at the ends of rows, or of the parts that rows were joined of.
    """
    for table in (rows, rows.T):
        there = (table == number).int()
        others = (1 - there).cumsum(1)
        between = (there > 0) & (others > 0) & (others < others[:, -1:])
        if not between.any():
            return False
        begins = between[:, 1:] & (there[:, :-1] == 0)
        alone = begins[:, :-1] & (there[:, 2:] == 0)
        if alone.sum() < _LEAST or 2 * alone.sum() <= begins.sum():
            return False
    return True


def _follows(target: torch.Tensor, rows: torch.Tensor, number: int) -> bool:
    """
    Say whether each target is the token after, whichever axis is that of time.

    But for the last place of padding at the beginning of a row, whose target may be padding, too.
    """
    blank = (target == number) & (rows == number)
    pairs = [
        (target[:, :-1], rows[:, 1:], blank[:, :-1]),
        (target[:-1], rows[1:], blank[:-1]),
    ]
    return any(bool(((after == read) | none).all()) for after, read, none in pairs if after.numel())
