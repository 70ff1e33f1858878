"""Watches folds: whether rows that are held out now were learned from when others were."""

import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.samples.shared_rows import are_samples
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_ROWS, _BYTES = 2**18, 2**28  # that are hashed: a few epochs of each of a few folds
_LEAST = 16  # rows of a fold: fewer may be equal to others by chance
_SAME = 0.5  # of the rows that are held out: folds have none in common, and splits anew a few
_COVERED = 0.9  # of all that was ever learned: a fold learns from all but what it holds out
_EXPECTED = 8.0  # rows that chance would have met where some steps are watched: e^-8 for none
_PARAMETERS, _WEIGHTS = 16, 64  # so many of each tell whether a model begins anew
# Of the way that the weights had gone: after an evaluation, a few steps may not be watched.
_CARRIED = 0.5
_WAITING = 64  # passes that may still learn


@dataclass(slots=True)
class _Folds:
    """
    What one module has learned from, fold by fold.

    module: which; another one of its name has learned nothing. learned: the rows up to the last
    evaluation; recent: those since. held: what the evaluations of this fold hold out. given: the
    rows of the evaluation that goes on. first: some of the weights that the training began with;
    weights: those of the last evaluation, until the training after it begins; carried: whether that
    went on with them. thin: whether some of what was learned since the last fold is not known.
    folds: how many there were. count, known, rows: those that went on with what others had learned,
    their rows that they had learned, and all that they hold out.
    """

    module: "weakref.ref[nn.Module]"
    learned: set[int] = field(default_factory=set)
    recent: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    first: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    carried: bool | torch.Tensor = False
    thin: bool = False
    folds: int = 0
    count: int = 0
    known: int = 0
    rows: int = 0
    source: str = ""

    def begin(self, module: nn.Module) -> None:
        """End the evaluation before, and see whether a training goes on with its weights."""
        self.close()  # by how its own fold began, before this one is known to go on
        if self.first is None:
            self.first = _take_weights(module)
        elif self.weights is not None:
            now, before, self.weights = _take_weights(module), self.weights, None
            alike = now.shape == before.shape == self.first.shape
            gone = (before - self.first).norm() if alike else 0.0
            # Nobody waits for it: it is asked for where all else says that this is a fold.
            self.carried = alike and (now - before).norm() < _CARRIED * gone

    def close(self) -> None:
        """End an evaluation: it is of the same fold as the one before, or of another."""
        held = self.given - self.recent
        if len(held) >= _LEAST:
            if len(held & self.held) < _SAME * len(held):
                self._judge(held)
                self.held, self.folds, self.thin = held, self.folds + 1, False
            self.learned |= self.recent
            self.recent = set()
        self.given = set()

    def _judge(self, held: set[int]) -> None:
        """Count a fold that learns from what the last one held out, and holds out what it knew."""
        known = held & self.learned
        seen = len(self.recent) / max(1, len((self.learned | self.recent) - held))
        turned = len(self.held & self.recent) >= _SAME * seen * max(1, len(self.held))
        covers = seen >= _COVERED
        if self.thin:
            covers = seen * len(held) >= _EXPECTED and held == self.given
        many = len(known) >= max(_LEAST, _SAME * len(held))
        if turned and covers and many and bool(self.carried):
            self.count += 1
            self.known += len(known)
            self.rows += len(held)


class FoldRows(Watcher):
    """
    The Probe event "folds": rows that a fold holds out, and that its model learned from in others.

    measured, reference: how many of them, of all that are held out. step: in how many folds.
    """

    makes = ("Probe:folds",)
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._modules: dict[str, _Folds] = {}
        self._done: list[_Folds] = []  # of modules that others of their name came after
        self._waiting: deque[tuple[Forward, list[int]]] = deque(maxlen=_WAITING)
        self._left = [_ROWS, _BYTES]
        self._next = 0  # the step after the latest that was watched

    def install(self, patches: Patches) -> None:
        """Ask for the watcher that hashes what is given."""
        self._batches = self.recorder.watcher(Batches)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down the rows that a pass is given, and the weights of an evaluation."""
        rows = self._find_rows(forward)
        if not rows:
            return
        if forward.gradients:
            self._folds_of(forward.module, module).begin(module)
            self._waiting.append((forward, rows))
        elif forward.module in self._modules:
            own = self._folds_of(forward.module, module)
            own.source = own.source or caller()
            own.given.update(rows)
            own.weights = _take_weights(module)

    def before_step(self, window: Window) -> Columns:
        """Take down what is learned from, once the evaluations before it are over."""
        skipped = self.recorder.steps > self._next
        self._next = self.recorder.steps + 1
        for own in self._modules.values():
            own.close()
            own.thin |= skipped
        for forward, rows in self._waiting:
            if forward.learned:
                self._modules[forward.module].recent.update(rows)
        self._waiting.clear()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for own in (*self._done, *self._modules.values()):
            own.close()
            self.looked |= {"folds"} if own.folds > 1 else set()
            if own.count:
                yield make_probe("folds", own.known, own.rows, step=own.count, source=own.source)

    def _folds_of(self, name: str, module: nn.Module) -> _Folds:
        """Return what is known of a module, of which another one may have had the name."""
        own = self._modules.get(name)
        if own is None or own.module() is not module:
            self._done += [own] if own is not None and own.folds > 1 else []
            own = self._modules[name] = _Folds(weakref.ref(module))
        return own

    def _find_rows(self, forward: Forward) -> list[int]:
        """Return numbers of the rows of a pass, as long as there are not too many."""
        rows: list[int] = []
        if min(self._left) <= 0:
            return rows
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            given = [self._batches.on_host(tensor) for tensor in self.recorder.given]
            if are_samples(given):
                rows = self._batches.rows_of(forward, given)
                self._left[0] -= len(rows)
                self._left[1] -= sum(t.numel() * t.element_size() for t in given)
        return rows


def _take_weights(module: nn.Module) -> torch.Tensor:
    """Return copies of a few weights of the last parameters that learn."""
    learning = [p.detach() for p in module.parameters() if p.requires_grad][-_PARAMETERS:]
    few = [sample_elements(p, _WEIGHTS).float() for p in learning]
    return torch.cat(few) if few else torch.empty(0)
