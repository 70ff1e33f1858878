"""Watches frozen weights that are others in an evaluation: whether they come back as they were."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.user_line import caller

_MATRICES, _ELEMENTS = 16, 256  # that are compared, and of each
_LOOKS = 16  # evaluations of one module
_LEFT = 0.01  # of what was changed: merging and taking apart rounds far less
_MATRIX = 2  # dimensions

Samples = dict[str, torch.Tensor]


@dataclass(slots=True)
class _Merging:
    """
    The frozen weights of a module, as they last learned, and in the evaluation since.

    changed: evaluations in which some were others; left: those after which they did not come back.
    """

    learned: Samples = field(default_factory=dict)
    evaluated: Samples = field(default_factory=dict)
    looks: int = 0
    changed: int = 0
    left: int = 0
    label: str = ""
    source: str = ""


class MergedWeights(Watcher):
    """
    The Probe event "merged": frozen weights that an evaluation changes, and leaves changed.

    measured: after how many evaluations they are neither what they were before nor what they were
    in it, reference: of how many that changed them; label: one of them.
    """

    makes = ("Probe:merged",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._known: weakref.WeakKeyDictionary[nn.Module, _Merging] = weakref.WeakKeyDictionary()
        self._all: list[_Merging] = []

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See how weights come back from an evaluation."""
        own = self._known.get(module)
        if not forward.gradients or not forward.training:
            return
        if own is None:
            own = self._known[module] = _Merging(learned=self._sample(module))
            self._all += [own] if own.learned else []
        elif own.evaluated:
            now, own.looks = self._sample(module), own.looks + 1
            self._compare(own, now)
            own.learned, own.evaluated = now, {}

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down the weights in the first pass of an evaluation."""
        own = self._known.get(module)
        if own is None or module.training or not own.learned or own.looks >= _LOOKS:
            return
        if not own.evaluated:
            own.evaluated = self._sample(module)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for own in self._all:
            if own.changed:
                self.looked.add("merged")
            if own.left:
                named = {"label": own.label, "source": own.source}
                yield make_probe("merged", own.left, own.changed, **named)

    def _sample(self, module: nn.Module) -> Samples:
        """Return some elements of the frozen matrices of a module of which other parts learn."""
        named = list(module.named_parameters())
        if not any(p.requires_grad for _, p in named):
            return {}
        frozen = [(name, p) for name, p in named if not p.requires_grad and p.dim() >= _MATRIX]
        some = [(n, p) for n, p in frozen if p.is_floating_point() and not p.is_meta][:_MATRICES]
        return {name: sample_elements(p, _ELEMENTS).clone() for name, p in some}

    def _compare(self, own: _Merging, now: Samples) -> None:
        """Compare weights with what they were in an evaluation, and before it."""
        names = [n for n in now if n in own.learned and n in own.evaluated]
        same = [n for n in names if now[n].shape == own.learned[n].shape == own.evaluated[n].shape]
        if same:
            numbers = [
                torch.stack(
                    [
                        (own.evaluated[name] - own.learned[name]).float().norm(),
                        (now[name] - own.learned[name]).float().norm(),
                        (now[name] - own.evaluated[name]).float().norm(),
                    ]
                )
                for name in same
            ]
            self.recorder.reads.ask(self, numbers, partial(self._take, own, same, caller()))

    def _take(
        self, own: _Merging, names: list[str], source: str, numbers: list[torch.Tensor]
    ) -> None:
        """Take in how far weights were moved, and how far they came back."""
        moves = [(name, *each.tolist()) for name, each in zip(names, numbers, strict=True)]
        left = [
            name
            for name, moved, rest, back in moves
            if rest > _LEFT * moved > 0 and back > _LEFT * moved
        ]
        own.changed += any(moved > 0 for _, moved, _, _ in moves)
        own.left += bool(left)
        if left and not own.label:
            own.label, own.source = left[0], source
