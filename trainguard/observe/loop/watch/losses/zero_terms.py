"""Watches terms of a loss whose weights are zero for all samples."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, constants_of
from trainguard.observe.loop.watch.losses.policy_weights import is_log_probability, parts_of_sum
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.named_numbers import REWARDS, find_numbers
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 8, 16, 32, 64, 128, 256, 512}  # that are looked at: a term may be weighed later on
_LEAST, _LARGEST = 8, 1 << 20  # elements: one weight of zero switches a term off on purpose
_REWARDS = 1 << 16  # of a rollout


class ZeroTerms(Watcher):
    """
    The Probe events "zero term": terms of the loss that are zeros times something, in every look.

    measured: in how many looks, reference: of how many; label: "policy" where log-probabilities of
    choices are multiplied, though the script has rewards that differ; step: how many zeros.
    """

    makes = ("Probe:zero term",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._zero = self._policy = self._size = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what the terms of a loss are multiplied by."""
        if self.recorder.steps not in _STEPS or loss.grad_fn is None:
            return
        weighed = [
            (node, each) for node in parts_of_sum(loss.grad_fn) for each in _weights_of(node)
        ]
        if not weighed:
            return
        chosen = [any(map(is_log_probability, parts_of_sum(node))) for node, _ in weighed]
        paid = any(chosen) and any(
            np.ptp(table) > 0
            for name, table in find_numbers(1, _REWARDS)
            if words_in(name) & REWARDS
        )
        terms = [
            (weights.numel(), paid and policy)
            for (_, weights), policy in zip(weighed, chosen, strict=True)
        ]
        shut = [~weights.any() for _, weights in weighed]
        self.recorder.reads.ask(self, shut, partial(self._take, terms, caller()))

    def _take(self, terms: list[tuple[int, bool]], source: str, shut: list[torch.Tensor]) -> None:
        """Count a look in which all weights of a term were zero."""
        zeros = [term for term, flag in zip(terms, shut, strict=True) if flag]
        self._looks += 1
        self._zero += bool(zeros)
        self._policy += any(policy for _, policy in zeros)
        if zeros:
            self._size, self._source = max(size for size, _ in zeros), source

    def finish(self) -> Iterable[Event]:
        """Return in how many looks a term was zero."""
        if self._looks:
            self.looked.add("zero term")
        if self._zero:
            label = "policy" if self._policy == self._zero else ""
            named = {"label": label, "step": self._size, "source": self._source}
            yield make_probe("zero term", self._zero, self._looks, **named)


def _weights_of(node: Node) -> Iterator[torch.Tensor]:
    """Yield the constants that a product multiplies by, one for each of some samples."""
    for weights in constants_of(node):
        if weights.layout == torch.strided and _LEAST <= weights.numel() <= _LARGEST:
            yield weights.detach()
