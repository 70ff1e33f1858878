"""Watches losses that are divided by a constant before their backward pass, as to accumulate."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Watcher, make_probe

_PASSES = 64  # that are looked at: what is so in them is so in all
_LARGEST = 65536  # that a loss is divided by
_DIGITS = 6  # of it: 1 / (1 / 49) is not quite 49


class DividedLosses(Watcher):
    """The Probe event "divided loss": what all losses were divided by; reference: how many."""

    makes = ("Probe:divided loss",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = 0
        self._divisors: Counter[float] = Counter()

    def before_backward(self, loss: torch.Tensor) -> None:
        """See what the last operation of a loss is."""
        if self._passes >= _PASSES:
            self.recorder.dismiss(self)
        elif loss.grad_fn is not None:
            self._passes += 1
            factor = autograd_graph.factor_of(loss.grad_fn)
            if 1 / _LARGEST < factor < 1:
                self._divisors[round(1 / factor, _DIGITS)] += 1

    def finish(self) -> Iterable[Event]:
        """Return the one divisor of all losses."""
        for divisor, times in self._divisors.items():
            if times == self._passes:
                yield make_probe("divided loss", divisor, times)
