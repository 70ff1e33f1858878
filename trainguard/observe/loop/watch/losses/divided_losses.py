"""Watches losses that are divided by a constant before their backward pass, as to accumulate."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.local_values import local_values

_PASSES = 64  # that are looked at: what is so in them is so in all
_LARGEST = 65536  # that a loss is divided by


class DividedLosses(Watcher):
    """The Probe event "divided loss": what all losses were divided by; reference: how many."""

    makes = ("Probe:divided loss",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = 0
        self._divisors: Counter[float] = Counter()

    def before_backward(self, loss: torch.Tensor) -> None:
        """See what the last operation of a loss is."""
        if self._passes < _PASSES and loss.grad_fn is not None:
            self._passes += 1
            divisor = _divisor_of(loss.grad_fn)
            if 1 < divisor < _LARGEST:
                self._divisors[divisor] += 1

    def finish(self) -> Iterable[Event]:
        """Return the one divisor of all losses."""
        self.looked |= {"divided loss"} if self._passes else set()
        for divisor, times in self._divisors.items():
            if times == self._passes:
                yield make_probe("divided loss", divisor, times)


def _divisor_of(node: Any) -> float:
    """Return the number that an operation divides by, or multiplies by its inverse; 0 for none."""
    kind = autograd_graph.kind_of(node)
    if kind not in ("DivBackward", "MulBackward"):
        return 0.0
    kept = autograd_graph.saved(node, "other")
    if not isinstance(kept, torch.Tensor) or kept.numel() != 1 or kept.requires_grad:
        return 0.0
    number = local_values(kept) if kept.is_cpu else None
    value = float(number) if number is not None and not kept.is_complex() else 0.0
    return value if kind == "DivBackward" or not value else 1 / value
