"""Watches targets that are answers of another model: whether something in that was awake."""

import weakref
from collections.abc import Iterable
from contextlib import suppress
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
from trainguard.observe.tools.user_line import caller

_FEWEST, _WIDEST = 4, 1024  # classes: rows of fewer are alike by chance
_ROWS = 8  # of a target
_NUMBERS = 2**20  # of answers that are kept
_LOOKS = 16  # at targets
_ALIKE = 1 - 1e-5  # correlation of a row of answers with itself, whatever temperature it got
_MATCHED = 0.95  # of the rows of a target: probabilities of zero have no logarithm


class KeptAnswers(Watcher):
    """
    The Probe event "kept answers": targets made of what a model has answered with something awake.

    These are the answers of a model that has not changed since, of an earlier step: the rows of a
    target are, but for a number that is added and one that is multiplied with, rows of answers, or
    of their softmax. measured: targets, of all with as many classes. The label is what was awake.
    """

    makes = ("Probe:kept answers",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._answers: list[torch.Tensor] = []  # of one model as it is, each row of length one
        self._left = 0
        self._module: weakref.ref[nn.Module] | None = None
        self._versions: tuple[int, ...] = ()
        self._step = -1
        self._label = self._source = ""
        self._looks = self._found = 0

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep what a model answers without a graph, with something awake in it."""
        if forward.gradients or not (forward.training and forward.awake) or self._found:
            return
        made = next(iter(tensors_in(output)), None)
        if made is None or not _are_scores(made):
            return
        versions = _versions_of(module)
        if self._module is None or self._module() is not module or versions != self._versions:
            self._module, self._versions = weakref.ref(module), versions
            self._answers, self._left, self._looks = [], _NUMBERS, 0
            self._label, self._source = forward.awake[0], caller()
        self._step = self.recorder.steps
        if self._left > 0:
            self._left -= made.numel()
            self._answers.append(_standardise(made.detach().float()))

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self.looked |= {"kept answers"} if self._looks else set()
        if self._found:
            named = {"label": self._label, "step": self._step, "source": self._source}
            yield make_probe("kept answers", self._found, self._looks, **named)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look for the rows of a target among the answers."""
        fits = self._answers and self._step < self.recorder.steps and value.requires_grad
        if not fits or self._looks >= _LOOKS or not isinstance(target, torch.Tensor):
            return
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            wide = self._answers[0].shape[1]
            able = _are_scores(target) and target.shape[1] == wide and len(target) >= _ROWS
            module = self._module() if self._module is not None else None
            if able and module is not None and _versions_of(module) == self._versions:
                self._looks += 1
                self._found += self._has(target.detach().float())

    def _has(self, target: torch.Tensor) -> bool:
        """Say whether nearly all rows of a target are answers, or their softmax."""
        sums = target.sum(1)
        shares = bool((target >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())
        rows = _standardise(target.log() if shares else target)
        near = torch.stack([(rows @ own.T).amax(1) for own in self._answers]).amax(0)
        return float((near > _ALIKE).float().mean()) >= _MATCHED


def _are_scores(tensor: torch.Tensor) -> bool:
    """Say whether a tensor on the host has a score of each of several classes in its rows."""
    plain = tensor.is_cpu and tensor.layout == torch.strided and tensor.is_floating_point()
    return plain and tensor.dim() == 2 and _FEWEST <= tensor.shape[1] <= _WIDEST


def _standardise(rows: torch.Tensor) -> torch.Tensor:
    """Return rows without their means, of length one."""
    rows = rows - rows.mean(1, keepdim=True)
    made: torch.Tensor = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return made


def _versions_of(module: nn.Module) -> tuple[int, ...]:
    """Return how often each parameter of a module was written to."""
    return tuple(p._version for p in module.parameters())  # noqa: SLF001 there is no public one
