"""Watches products of two narrow matrices, as adapters have: one that is zero, and frozen."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import has_memory

_MOST = 4096  # modules


class ZeroFactors(Watcher):
    """
    The Probe event "zero factor": products that are nothing, and no part of which can learn.

    measured: how many there are; reference: for how many steps; step: since when. And the Probe
    event "zero factors": the same of products whose factors are zero, where optimizers hold one.
    """

    makes = ("Probe:zero factor", "Probe:zero factors")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._step = 0
        self._frozen: dict[str, weakref.ref[torch.Tensor]] = {}  # factors that are zero, by name
        self._met = set[int]()  # windows
        self._begun = 0  # when those were found whose factors are both zero
        self._both: dict[str, tuple[weakref.ref[torch.Tensor], ...]] = {}
        self._source = ""  # where the class of the first of them computes

    def before_step(self, window: Window) -> Columns:
        """Look at the modules that were called before the first step of an optimizer."""
        if window.optimizer is not None and id(window) not in self._met and self.recorder.probe:
            self._met.add(id(window))  # the first step of an optimizer may not be seen
            found = list(self._find_zeros())
            self.looked |= {"zero factor"} if found else set()
            dead = all(frozen for _, _, frozen in found)  # not one of them can learn
            self._step, self._frozen = self.recorder.steps, {}
            self._frozen = {name: weakref.ref(zero) for name, zero, _ in found} if dead else {}
            first = min(found, key=lambda each: each[0])[1] if self._frozen else None
            self._source = self.recorder.names.source(first) if first is not None else ""
            self._see_both()
        elif self._frozen and window.is_surveyed:
            zeros = [zero for ref in self._frozen.values() if (zero := ref()) is not None]
            if any(zero.requires_grad or bool(zero.any()) for zero in zeros):
                self._frozen = {}
        if self._both and window.is_surveyed:
            self._both = {name: pair for name, pair in self._both.items() if _are_zero(pair)}
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found, where no product at all can learn."""
        still = [name for name, pair in self._both.items() if _are_zero(pair)]
        if still:
            yield Probe(
                probe="zero factors",
                measured=float(len(still)),
                reference=float(self.recorder.steps - self._begun),
                step=self._begun,
                label=min(still),
            )
        if self._frozen:
            yield Probe(
                probe="zero factor",
                measured=float(len(self._frozen)),
                reference=float(self.recorder.steps - self._step),
                step=self._step,
                label=min(self._frozen),
                source=self._source,
            )

    def _see_both(self) -> None:
        """Take down the products of which both factors are zero, and an optimizer holds one."""
        windows = [each for each in self.recorder.windows if each.optimizer is not None]
        held = {id(parameter) for window in windows for parameter in window.parameters}
        pairs = [
            (self.recorder.names.parameter(one), (weakref.ref(one), weakref.ref(other)))
            for one, other in self._find_products()
            if held & {id(one), id(other)} and not (one.any() or other.any())
        ]
        if pairs:
            self._begun, self._both = self.recorder.steps, dict(pairs)
            self.looked.add("zero factors")

    def _find_products(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the factors of the products in the modules that were called."""
        modules = [part for root in self.recorder.names.roots() for part in root.modules()][:_MOST]
        for module in modules:
            if id(module) in self.recorder.called:
                yield from _products_of(module)

    def _find_zeros(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield products of which one factor is zero: it, its name, and whether both are frozen."""
        for one, other in self._find_products():
            if bool(one.any()) != bool(other.any()):
                zero = other if bool(one.any()) else one
                frozen = not (one.requires_grad or other.requires_grad)
                yield self.recorder.names.parameter(zero), zero, frozen


def _are_zero(pair: "tuple[weakref.ref[torch.Tensor], ...]") -> bool:
    """Say whether both factors are zero, as far as they are still there."""
    factors = [ref() for ref in pair]
    return not any(factor is not None and bool(factor.any()) for factor in factors)


def _products_of(module: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the pairs of matrices of a module whose product is wider than what is between them."""
    parts = [module, *(part for part in module.children() if not any(part.children()))]
    own = [p for part in parts for p in part.parameters(recurse=False) if _is_matrix(p)]
    for one in own:
        for other in own:
            narrow = one.shape[1] < min(one.shape[0], other.shape[1])
            if one is not other and one.shape[1] == other.shape[0] and narrow:
                yield one, other


def _is_matrix(parameter: torch.Tensor) -> bool:
    """Say whether a parameter is a matrix that can be read."""
    return parameter.dim() == 2 and not parameter.is_meta and has_memory(parameter)
