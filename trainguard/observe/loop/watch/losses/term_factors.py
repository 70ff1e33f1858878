"""Watches what the terms of a loss are multiplied by, so that an evaluation can be added up too."""

from typing import Any

import torch

from trainguard.observe.loop.mixed_terms import Factors
from trainguard.observe.loop.watch.gradients.affine_parts import affine_parts
from trainguard.observe.loop.watch.gradients.autograd_graph import token_at
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.models.forwards import Forwards
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.tools.patches import Patches

_STEPS = {0, 1, 2, 4, 8, 64, 512}  # that are looked at: what is so in them is no warm-up
_FEWEST = 2  # of them, before anything is known
_MOST = 16  # terms
_EXACT = 1e-6  # of a factor


class TermFactors(Watcher):
    """
    Tells the watcher of evaluations what the calls of loss functions are multiplied by in a loss.

    In their order; nothing where that changes, or where a loss has other terms too.
    """

    makes = ()  # evaluations are known without it, but not what their terms add up to
    relies_on = ("LossFunctions", "Forwards")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._seen: list[Factors] = []
        self._calls: list[Any] = []  # since the latest backward; None for what is no one number

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Remember the mark of a call."""
        if value.requires_grad and self.recorder.age in _STEPS and len(self._calls) <= _MOST:
            self._calls.append((tally, tally.turn) if value.numel() == 1 else None)

    def before_backward(self, loss: torch.Tensor) -> None:
        """See what the terms are multiplied by, and whether that is as before."""
        calls, self._calls = self._calls, []
        if self.recorder.age > max(_STEPS):
            self.recorder.dismiss(self)
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        self._seen.append(_factors(loss, calls))
        first = self._seen[0]
        if not first or any(not _are_alike(first, each) for each in self._seen):
            self.recorder.watcher(Forwards).factors = ()
            self.recorder.dismiss(self)
        elif len(self._seen) >= _FEWEST:
            self.recorder.watcher(Forwards).factors = first


def _factors(loss: torch.Tensor, calls: list[Any]) -> Factors:
    """Return what each call is multiplied by in a loss; nothing where that is not all of it."""
    if not 1 < len(calls) <= _MOST or None in calls:
        return ()
    found: dict[Any, float] = {}
    parts = affine_parts((loss.grad_fn, 0), ends=lambda node: token_at(node) is not None)
    for part in parts:
        token = token_at(part.node)
        if token in found or part.is_moved:
            return ()
        found[token] = part.factor
    return tuple(found[call] for call in calls) if found.keys() == set(calls) else ()


def _are_alike(first: Factors, other: Factors) -> bool:
    """Say whether two losses are made alike."""
    pairs = zip(first, other, strict=False)
    same = all(abs(one - two) <= _EXACT * abs(one) for one, two in pairs)
    return len(first) == len(other) and same
