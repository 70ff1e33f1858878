"""Watches what weighs the steps of an episode: whether returns stand in the order of the steps."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table, fit_columns
from trainguard.observe.tools.named_numbers import REWARDS, find_numbers
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 256
_SHORTEST, _LONGEST = 8, 4096  # steps of an episode: of fewer, three numbers fit by chance
_EXACT = 1e-4  # of the weights' deviation: the rounding of float32
_DISCOUNTS = (0.3, 0.9999)  # one of 1, with equal rewards, is a ramp in either order


class ReturnOrders(Watcher):
    """
    The Probe events "returns reversed": losses whose weights are returns from the last step on.

    measured: how many episodes are weighed so, reference: of how many whose weights are returns.
    """

    makes = ("Probe:returns reversed",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._known = self._reversed = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare constants that are multiplied below a loss with rewards of the same length."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        weights = list(_find_weights(loss))
        numbers = find_numbers(_SHORTEST, _LONGEST) if weights else ()
        rewards = [table.reshape(-1) for name, table in numbers if words_in(name) & REWARDS]
        for row in weights:
            for own in rewards:
                order = _find_order(row, own) if len(own) == len(row) else 0
                if order:
                    self._known += 1
                    self._reversed += order < 0
                    self._source = self._source or caller()
                    break

    def finish(self) -> Iterable[Event]:
        """Return how many were reversed."""
        if self._known:
            self.looked.add("returns reversed")
            yield make_probe("returns reversed", self._reversed, self._known, source=self._source)


def _find_weights(loss: torch.Tensor) -> Iterator[Table]:
    """Yield constants, one for each step of an episode, that something learned is multiplied by."""
    for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
        for kept in filter(_is_row, autograd_graph.constants_of(node)):
            flat = array_of(kept.detach().reshape(-1).double())
            if np.isfinite(flat).all():
                yield flat


def _is_row(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has a constant number for each step of an episode."""
    here = tensor.is_cpu and tensor.layout == torch.strided and not tensor.is_complex()
    return here and not tensor.requires_grad and _SHORTEST <= tensor.numel() <= _LONGEST


def _find_order(weights: Table, rewards: Table) -> int:
    """Return 1 where weights are returns up to a scale, -1 where they are in reverse, else 0."""
    if _are_returns(weights, rewards):
        return 1
    return -1 if _are_returns(weights[::-1], rewards) else 0


def _are_returns(weights: Table, rewards: Table) -> bool:
    """Say whether each weight is a discount times the next, its reward, and a constant."""
    factors, rest = fit_columns(np.column_stack([weights[1:], rewards[:-1]]), weights[:-1])
    size, equal = float(np.std(weights)), float(np.ptp(rewards[:-1])) == 0
    low, high = _DISCOUNTS
    discounted = low <= factors[0] <= (high if equal else 1 + _EXACT)
    return size > 0 and rest <= _EXACT * size and discounted and (equal or abs(factors[1]) > _EXACT)
