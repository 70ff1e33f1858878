"""Watches noise that a loss is made with: whether it is the same in every step."""

from collections.abc import Iterable, Iterator
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import DISTANCES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.losses.noise_targets import NoiseTargets
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 2, 4, 8, 16, 32, 64, 128}  # that are looked at
_LEAST, _LARGEST = 32, 1 << 16  # numbers of a tensor of noise
_MOST, _MOST_NODES = 8, 20000
_SCALED = 1.01  # what dropout leaves is multiplied by more than this
_CHANCE = 4.0  # deviations of a mean, a deviation, or a fourth moment


class KeptNoise(Watcher):
    """
    The Probe events "kept noise" and "kept mask": constants of a loss that look drawn by chance.

    Noise of a normal distribution for each sample, while the inputs are others; a mask of zeros and
    of what dropout multiplies the rest by. Both with the same numbers in each look. measured: how
    many looks; reference: how many numbers.
    """

    makes = ("Probe:kept noise", "Probe:kept mask")
    relies_on = ("LossFunctions", "NoiseTargets")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        # The constants of the first look, by their checksums, where they are: nobody waits for it.
        self._first: dict[int, torch.Tensor] = {}
        self._kept: set[int] = set()
        self._inputs: set[int] = set()
        self._rows = self._looks = 0
        self._given: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep what a pass is given until its loss is there."""
        if forward.gradients and self.recorder.steps in _STEPS:
            rows = (each for each in tensors_in(inputs) if each.dim() and has_rows(each))
            self._given = [each.detach() for each in rows][:1]

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare the constants that a loss is made with to those of the looks before."""
        (given, self._given), (targets, self._targets) = (self._given, []), (self._targets, [])
        if self.recorder.steps not in _STEPS or not given or loss.grad_fn is None:
            return
        if self._looks and not self._kept:
            self.recorder.dismiss(self)
            return
        told = self.recorder.watcher(NoiseTargets).latest
        targets += [told] if told is not None and _is_constant(told) else []
        constants = [*targets, *_find_constants(loss)][:_MOST]
        self._rows = len(given[0])
        if not self._looks:
            self._source = caller()
        take = partial(self._take, [] if self._looks else [c.clone() for c in constants])
        self.recorder.reads.ask_checksums(self, [*given, *constants], take)

    def finish(self) -> Iterable[Event]:
        """Return what was kept, by what it looks like."""
        self._given, self._targets = [], []
        if self._looks < 2:
            return
        self.looked |= {"kept noise", "kept mask"}
        for key in sorted(self._kept):
            table = np.array(array_of(self._first[key].cpu().double()))
            noise = len(self._inputs) == self._looks and _is_normal(table, self._rows)
            kind = "kept noise" if noise else "kept mask" if _is_dropout(table) else ""
            if kind:
                named = {"label": str(table.shape), "source": self._source}
                yield make_probe(kind, self._looks, table.size, **named)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Keep what a distance is to, which may be noise, until the loss is handed to backward."""
        wanted = self.recorder.steps in _STEPS and value.requires_grad
        if wanted and tally.function in DISTANCES and _is_constant(target):
            self._targets = [*self._targets[: _MOST - 1], target.detach()]

    def _take(self, constants: list[torch.Tensor], sums: list[int | None]) -> None:
        """Take the checksums of an input and of the constants."""
        given, *rest = sums
        known = [(key, value) for key, value in zip(rest, constants, strict=False) if key]
        if not self._looks:
            self._first = dict(known)
        own = {key for key in rest if key is not None}
        self._kept = self._kept & own if self._looks else set(self._first)
        self._first = {key: value for key, value in self._first.items() if key in self._kept}
        self._inputs |= {given} if given is not None else set()
        self._looks += 1


def _find_constants(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors without a gradient that something learned is multiplied by."""
    for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
        for kept in autograd_graph.constants_of(node):
            if _is_constant(kept):
                yield kept.detach()


def _is_constant(tensor: torch.Tensor) -> bool:
    """Say whether a tensor may be noise that was drawn, and not learned."""
    plain = tensor.is_floating_point() and tensor.layout == torch.strided
    return plain and not tensor.requires_grad and _LEAST <= tensor.numel() <= _LARGEST


def _is_normal(table: Table, rows: int) -> bool:
    """Say whether numbers, in a row for each sample, have the moments of a normal distribution."""
    if table.ndim < 2 or len(table) != rows or len(np.unique(table)) < 0.99 * table.size:
        return False
    mean, deviation = float(table.mean()), float(table.std())
    fourth = float(np.mean((table - mean) ** 4)) / max(deviation, 1e-12) ** 4
    chance = _CHANCE / sqrt(table.size)
    near = abs(mean) < chance and abs(deviation - 1) < chance
    return near and abs(fourth - 3) < 3 * sqrt(24 / table.size)


def _is_dropout(table: Table) -> bool:
    """Say whether numbers are zeros and what dropout multiplies the rest by: their mean is one."""
    values = np.unique(table)
    if len(values) != 2 or values[0] != 0 or values[1] < _SCALED:
        return False
    chance = _CHANCE * sqrt((values[1] - 1) / table.size)
    return abs(float(table.mean()) - 1) < chance
