"""Watches rows that a module learns from, and meets again in evaluations of a set of its own."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.samples.overlapping_windows import (
    OverlappingWindows,
    Runs,
    runs_in,
)
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_ROWS, _BYTES = 2**16, 2**26  # that are hashed, of training and of evaluations each
_LEAST = 16  # rows of a pass that tells anything: in fewer, a share of them is luck
_VALUES = 16  # different numbers in a row: with fewer, two samples may be equal by chance
BITS = 40.0  # that a row of few different numbers tells: by chance 1 of 10^12 is equal
_RICH = 2 * BITS  # that columns tell: then a row that comes again was drawn again, and is no luck
_COUNTED = 32  # rows of a table whose equal numbers are counted
_TRIED = 4  # rows of a pass whose numbers are counted
_INPUTS = 4  # tensors that a pass is given
_WAITING = 64  # passes that may still learn
_PENDING = 64  # passes that were learned from, and are taken down together
_MIXED = 0.9  # of the passes: where sets are evaluated in turns, each is known or new as a whole
_MET = 16  # passes that learned last, whose rows tell how many of all were seen learning
# Where not all steps are watched: of the training's rows, at least; and at most so much of that
# share is known of a set that is none of the training's.
_COVERED, _APART = 0.5, 0.7
_SURE = 0.95  # the same where rows are drawn again: those that come often are known first
_STEADY = 0.5  # of the largest share: that of a set whose rows are trained on one by one grows


@dataclass(slots=True)
class _EvaluatedRows:
    """
    The passes of one evaluation: between two steps, without a gradient.

    known: those of its rows that had been learned from.
    passes, mixed: all that are large enough, and those with rows of both kinds.
    most: the share of known rows that a part of the training had, times what tells another set.
    """

    rows: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    passes: int = 0
    mixed: int = 0
    most: float = 1.0

    @property
    def share(self) -> float:
        """The share of its rows that had been learned from."""
        return len(self.known) / len(self.rows)


@dataclass(slots=True)
class _Rows:
    """
    What one module was given.

    learned: the rows that it learned from; again: whether the latest pass had none but known ones;
    repeats: whether some came twice in other passes; doubles: in one pass.
    met: how many rows of the latest passes were known before, and how many they had: not all need
    be watched.
    blurred: whether its rows are no samples by themselves, or not rich enough to tell.
    windows: what is known of its rows as windows of a series.
    pending: the rows of the latest passes that it learned from, not yet among the others.
    """

    learned: set[int] = field(default_factory=set)
    again: bool = False
    repeats: bool = False
    blurred: bool = False
    now: _EvaluatedRows = field(default_factory=_EvaluatedRows)
    done: list[_EvaluatedRows] = field(default_factory=list)
    windows: OverlappingWindows = field(default_factory=OverlappingWindows)
    source: str = ""
    pending: list[list[int]] = field(default_factory=list)
    met: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MET))
    doubles: bool = False

    @property
    def covered(self) -> float:
        """The share of what is learned from that was seen: at least so much, in a later epoch."""
        return sum(known for known, _ in self.met) / max(1, sum(rows for _, rows in self.met))

    def learn(self, rows: list[int], runs: Runs) -> None:
        """Take down rows that were learned from."""
        self.pending.append(rows)
        if len(self.pending) >= _PENDING:
            self.settle()
        self.windows.learn(len(rows), runs)

    def settle(self) -> None:
        """Put the rows of the latest passes to the others: mostly nobody asks for them."""
        pending, self.pending = self.pending, []
        for rows in pending:
            own = set(rows)
            known = len(self.learned & own)
            self.again = known == len(own)
            self.met.append((known, len(own)))
            self.doubles |= len(own) < len(rows)
            self.repeats |= not self.again and len(own) - known < len(rows)
            self.learned |= own

    def evaluate(self, tensor: torch.Tensor, rows: list[int], runs: Runs) -> None:
        """Take down rows of a pass that nothing learns from, once most of the others are known."""
        self.settle()
        if self.again:
            self.windows.evaluate(runs, [row not in self.learned for row in rows])
        elif self.covered < _COVERED:
            return
        self.now.most = 1.0 if self.again else _APART * self.covered
        known = [place for place, row in enumerate(rows) if row in self.learned]
        if _bits_of_columns(tensor) < _RICH:
            self.blurred |= not all(self._is_one_of_its_kind(tensor[i]) for i in known[:_TRIED])
        self.now.rows.update(rows)
        self.now.known.update(rows[place] for place in known)
        self.now.passes += len(rows) >= _LEAST
        self.now.mixed += len(rows) >= _LEAST and 0 < len(known) < len(rows)

    def _is_one_of_its_kind(self, row: torch.Tensor) -> bool:
        """Say whether a row has so many numbers that no other sample has the same by chance."""
        if row.numel() < _VALUES:
            return not self.repeats  # the columns of its table have told enough
        if row.is_floating_point() and len(torch.unique(row)) >= _VALUES:
            return True
        return not self.repeats and bits_of_row(row) >= BITS

    def close(self) -> None:
        """End an evaluation."""
        if self.now.rows:
            self.done.append(self.now)
            self.now = _EvaluatedRows()

    def find_shared(self) -> _EvaluatedRows | None:
        """Return the last whole evaluation of a set that has both kinds of rows throughout."""
        # Of a long run some steps are not watched, and evaluations after them only in part.
        for place, last in reversed([*enumerate(self.done)]):
            if any(each.rows == last.rows for each in self.done[place + 1 :]):
                continue  # what is not so at the end was not so throughout
            alike = [each for each in self.done[:place] if each.rows == last.rows]
            if (alike or len(self.done) == 1) and self._is_shared([*alike[1:], last]):
                return last
        return None

    def _is_shared(self, alike: list[_EvaluatedRows]) -> bool:
        """Say whether evaluations of one set mix what was learned from with what was not."""
        passes, mixed = sum(each.passes for each in alike), sum(each.mixed for each in alike)
        sure = self.doubles and not self.again
        steady = alike[0].share >= (_SURE if sure else _STEADY) * alike[-1].share
        part = 2 * len(alike[-1].known) <= len(self.learned)
        apart = alike[-1].share <= min(each.most for each in alike)
        return not self.blurred and steady and part and apart and 0 < _MIXED * passes <= mixed


class SharedRows(Watcher):
    """
    The Probe events "overlap" and "windows": what of an evaluation its module had learned from.

    It is made of a set that is evaluated again and again, or alone and once, in which learned and
    new rows are mixed in nearly all passes. A training set that is evaluated too is known as a
    whole, and other data are new. Windows of a series are told where all evaluations are of such
    that end inside of what was learned from, but for a few, as a test at the end.
    """

    makes = ("Probe:overlap", "Probe:windows")
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._modules: defaultdict[str, _Rows] = defaultdict(_Rows)
        self._waiting: deque[tuple[Forward, list[int], Runs]] = deque()
        self._left = {True: [_ROWS, _BYTES], False: [_ROWS, _BYTES]}  # training, evaluation

    def install(self, patches: Patches) -> None:
        """Ask for the watcher that hashes what is given."""
        self._batches = self.recorder.watcher(Batches)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down the rows that a pass is given."""
        left = self._left[forward.gradients]
        if min(left) <= 0:
            return
        given = [self._batches.on_host(tensor) for tensor in self.recorder.given]
        rows: list[int] = []
        runs: Runs = []
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            if are_samples(given):
                rows = self._batches.rows_of(forward, given)
                known = self._modules.get(forward.module)
                is_series = given[0].is_floating_point()  # tokens are no measurements
                if is_series and (known is None or not known.windows.is_hopeless):
                    runs = runs_in(given[0])
        if not rows:
            return
        left[0] -= len(rows)
        left[1] -= sum(tensor.numel() * tensor.element_size() for tensor in given)
        if forward.gradients:
            self._waiting.append((forward, rows, runs))
            if len(self._waiting) > _WAITING:
                self._learn(_WAITING)
        elif forward.module in self._modules:
            own = self._modules[forward.module]
            own.source = own.source or caller()
            own.evaluate(given[0].detach(), rows, runs)

    def before_step(self, window: Window) -> Columns:
        """Take down what is learned from, and that the evaluations before it are over."""
        self._learn(max(1, len(window.losses)))
        for own in self._modules.values():
            own.close()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for own in self._modules.values():
            own.settle()
            if min(self._left[False]) > 0:
                own.close()  # of another one the end is not known
            self.looked |= {"overlap"} if own.done else set()
            windows = own.windows
            self.looked |= {"windows"} if windows.passes else set()
            if windows.is_shared:
                yield make_probe(
                    "windows", windows.known, windows.rows, step=len(own.learned), source=own.source
                )
            shared = own.find_shared() if own.done else None
            if shared is not None:
                yield Probe(
                    probe="overlap",
                    measured=float(len(shared.known)),
                    reference=float(len(shared.rows)),
                    step=len(own.learned),
                    source=own.source,
                )

    def _learn(self, most: int) -> None:
        """Take down what passes learned from; of several for one loss, a row is no sample."""
        learned = [(f.module, rows, runs) for f, rows, runs in self._waiting if f.learned]
        self._waiting.clear()
        for module, rows, runs in learned:
            self._modules[module].learn(rows, runs)
        if len(learned) > most:
            for module, passes in Counter(module for module, *_ in learned).items():
                self._modules[module].blurred |= passes > most


def are_samples(given: list[torch.Tensor]) -> bool:
    """Say whether tensors have a row for each sample, and those of the first tell them apart."""
    if not 0 < len(given) <= _INPUTS:
        return False
    first, rows = given[0], given[0].shape[0]
    plain = all(
        t.device.type == "cpu" and t.layout == torch.strided and t.shape[0] == rows for t in given
    )
    if not plain or first.is_complex() or rows < 2:
        return False
    return first.numel() >= _VALUES * rows or _bits_of_columns(first) >= BITS


def bits_of_row(row: torch.Tensor) -> float:
    """Return how much the numbers of a row tell: its length times its entropy, in bits."""
    counts = torch.unique(row, return_counts=True)[1]
    return float((counts * (row.numel() / counts).log2()).sum())


def _bits_of_columns(table: torch.Tensor) -> float:
    """
    Return how much the columns of a narrow table tell of a row, if each tells by itself.

    Of 32 different numbers nearly 9 bits: of 496 pairs none is equal (the collision entropy).
    """
    if table.dim() != 2 or not table.is_floating_point():
        return 0.0
    few = table.detach()[:_COUNTED]
    pairs = len(few) * (len(few) - 1) / 2
    equal = ((few[:, None] == few[None]).sum((0, 1)) - len(few)).double() / 2
    return float((pairs / (equal + 1)).log2().clamp_min(0).sum())
