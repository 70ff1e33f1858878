"""Watches whether a loss makes choices likelier or less likely that have paid."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.affine_parts import affine_parts, parts_of_choice
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, constants_of, kind_of
from trainguard.observe.loop.watch.losses.policy_weights import (
    PolicyWeights,
    is_log_probability,
    parts_of_sum,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.named_numbers import PAID, find_numbers
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64, 128}  # that are looked at
_LEAST, _LARGEST = 4, 1 << 16  # weights, each of one choice
_NEAR = 1e-4  # of the largest: what comes of adding up in another order
_RATIO = {"ClampBackward", "ExpBackward"}
_PAID = PAID | {"discounted", "g"}  # words in the names of weights


class PolicySigns(Watcher):
    """
    The Probe event "term sign" with the label "policy": log-probabilities that pay is added to.

    What multiplies them is, but for its scale, in a variable with the name of a reward, a return or
    an advantage. measured: losses that add it, and so make what has paid less likely; reference:
    losses of which it is known.
    """

    makes = ("Probe:term sign",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._wrong = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Hold the weights of log-probabilities against what the script calls a reward."""
        drawn = self.recorder.watcher(PolicyWeights).drawn_at
        if drawn is None or self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        references = [window.optimizer for window in self.recorder.windows]
        holders = [held for each in references if each is not None and (held := each()) is not None]
        if any(group.get("maximize") for held in holders for group in held.param_groups):
            return
        weights = _weights_of(loss)
        if not _LEAST <= weights.size <= _LARGEST or np.ptp(weights) == 0:
            return
        self.looked.add("term sign")
        own = weights / np.abs(weights).max()
        paid = [
            flat / np.abs(flat).max()
            for name, table in find_numbers(weights.size, weights.size)
            if words_in(name) & _PAID and np.any(flat := table.ravel())
        ]
        added = any(np.allclose(own, each, atol=_NEAR) for each in paid)
        taken_off = any(np.allclose(-own, each, atol=_NEAR) for each in paid)
        if added != taken_off:
            self._looks, self._wrong = self._looks + 1, self._wrong + added
            self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        if self._wrong:
            rest = {"label": "policy", "source": self._source}
            yield make_probe("term sign", self._wrong, self._looks, **rest)


def _weights_of(loss: torch.Tensor) -> Table:
    """Return what log-probabilities of choices are multiplied by in a loss, in their order."""
    parts = list(affine_parts((loss.grad_fn, 0), ends=_is_weighed))
    parts += [inner for part in parts for inner in parts_of_choice(part, _is_weighed)]
    for part in parts:
        for weights in constants_of(part.node) if _is_weighed(part.node) else ():
            if weights.is_cpu and weights.numel() >= _LEAST and weights.is_floating_point():
                return part.factor * np.array(array_of(weights), np.float64).ravel()
    single = [p.factor for p in parts if any(map(is_log_probability, parts_of_sum(p.node)))]
    # The last one that was added up is found first.
    return np.array(single[::-1] if len(set(single)) > 1 else [], np.float64)


def _is_weighed(node: Node) -> bool:
    """Say whether a node multiplies log-probabilities of choices, or ratios, by numbers."""
    live = [before for before, _ in node.next_functions if before is not None]
    if kind_of(node) != "MulBackward" or len(live) != 1:
        return False
    weights = next(constants_of(node), None)
    several = weights is not None and weights.numel() >= _LEAST
    return several and any(map(is_log_probability, parts_of_sum(live[0], _RATIO)))
