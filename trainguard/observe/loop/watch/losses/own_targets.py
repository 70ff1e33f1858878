"""Watches losses of evaluations: whether a model is held against what it has made itself."""

import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.patches import Patches

_OUTPUTS = 8  # tensors of a pass
_CALLS = 1024  # of loss functions that are looked at

Memory = tuple[int, int]


class OwnTargets(Watcher):
    """
    The Probe event "own target": calls of a loss function in evaluations that compare two outputs.

    Both of one pass, where the same function has a target from elsewhere in the training.
    measured: such calls, reference: all in evaluations; label: the function.
    """

    makes = ("Probe:own target",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._made: list[tuple[weakref.ref[torch.Tensor], Memory]] = []  # by the latest pass
        self._counts = Counter[tuple[str, bool, bool]]()  # by function, evaluation, own target
        self._lines: dict[str, str] = {}
        self._left = _CALLS

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what a pass has made, but for what it was given and returns."""
        self._made = []
        if self._left <= 0:
            return
        with suppress(Exception):  # tensors of foreign kinds have no memory
            given = {_memory_of(tensor) for tensor in self.recorder.given}
            made = [
                (weakref.ref(each), _memory_of(each))
                for each in islice(tensors_in(output), _OUTPUTS)
            ]
            self._made = [(ref, memory) for ref, memory in made if memory not in given]

    def finish(self) -> Iterable[Event]:
        """Return what was seen of each function that training and evaluations have called."""
        for function in dict.fromkeys(name for name, *_ in self._counts):
            own, other = self._counts[function, True, True], self._counts[function, True, False]
            if (
                own
                and self._counts[function, False, False]
                and not self._counts[function, False, True]
            ):
                place = {"label": function, "source": self._lines[function]}
                yield make_probe("own target", own, own + other, **place)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Count a call that is given what the latest pass has made."""
        with suppress(Exception):  # tensors of foreign kinds have no memory
            memories = {memory for ref, memory in self._made if ref() is not None}
            sides = [_memory_of(side) in memories for side in (scores, target)]
            if any(sides):
                self._left -= 1
                self._counts[tally.function, not value.requires_grad, all(sides)] += 1
                if all(sides):
                    self._lines.setdefault(tally.function, tally.source)


def _memory_of(tensor: torch.Tensor) -> Memory:
    """Return what a view of a tensor has in common with it until it is written to."""
    return tensor.untyped_storage().data_ptr(), tensor._version  # noqa: SLF001 no public one
