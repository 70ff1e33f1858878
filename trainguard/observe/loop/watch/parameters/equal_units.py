"""Watches layers whose units begin with the same weights: whether they ever come apart."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.parameters.drawn_lines import DrawnLines
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import has_rows, is_sharded

_MOST = 4096  # modules
_UNITS = 8  # of a layer: fewer may be alike on purpose
_EQUAL = 1e-6  # of the largest weight, at the beginning
_ALIKE = 1e-3  # the same, later: equal sums differ by rounding, which steps may amplify
_MOVED = 1e-3  # of it: what a rate of nothing leaves where it was says nothing
_STEPS = 16


class EqualUnits(Watcher):
    """
    The Probe event "equal units": layers all units of which are one, at first and ever after.

    It is "units begun equal" where they came apart, and did not begin with zeros. measured: how
    many units the first of them has; step: steps since; reference: such layers.
    """

    makes = ("Probe:equal units", "Probe:units begun equal")
    relies_on = ("DrawnLines",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._equal: dict[str, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._begun: list[Probe] = []
        self._found: list[Probe] = []
        self._since = self._steps = 0

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Look at the layers that were called before the first step, and at those found later."""
        if window.optimizer is not None and not window.index and self.recorder.probe:
            held = {id(parameter) for parameter in window.parameters}
            layers = dict(self._find_layers(held))
            self.looked |= {"equal units"} if layers else set()
            equal = {name: weight for name, weight in layers.items() if _are_alike(weight, _EQUAL)}
            for name, weight in equal.items():
                self._equal[name] = weakref.ref(weight), weight.detach()[0].clone()
            numbers = {name: weight for name, weight in equal.items() if bool(weight.any())}
            self._begun += self._describe("units begun equal", numbers)
            self._since = self.recorder.steps
        elif self._equal and window.is_surveyed:
            self._equal = {n: known for n, known in self._equal.items() if _stays(known[0]())}
            self._steps = self.recorder.steps - self._since
            if self._steps >= _STEPS:  # by the end of the run it may be gone
                moved = {
                    name: own
                    for name, (ref, first) in self._equal.items()
                    if (own := ref()) is not None and _has_moved(own, first)
                }
                self._found = list(self._describe("equal units", moved))
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the layers whose units have moved, and are still equal; or that they began so."""
        return self._found or self._begun[:1]

    def _describe(self, probe: str, layers: dict[str, torch.Tensor]) -> Iterator[Probe]:
        """Yield the event about the first of some layers."""
        for name, weight in list(layers.items())[:1]:
            line = self.recorder.watcher(DrawnLines).find_line([weight])
            more = {"label": name, "step": self._steps, "source": line}
            yield make_probe(probe, len(weight), len(layers), **more)

    def _find_layers(self, held: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield layers of several units that were called and are to learn."""
        names, called = self.recorder.names, self.recorder.called
        modules = [part for root in names.roots() for part in root.modules()][:_MOST]
        for module in modules:
            if isinstance(module, nn.Linear | _ConvNd) and id(module) in called:
                weight = module._parameters.get("weight")  # noqa: SLF001 a property may change it
                if weight is not None and id(weight) in held and _is_readable(weight):
                    yield names.parameter(weight), weight


def _is_readable(weight: torch.Tensor) -> bool:
    """Say whether a layer has several units, all of whose weights are here."""
    here = weight.is_cpu and has_rows(weight) and not is_sharded(weight)
    return here and len(weight) >= _UNITS and weight.numel() > 0


def _are_alike(weight: torch.Tensor, near: float) -> bool:
    """Say whether all units of a layer have the same weights."""
    rows = weight.detach().flatten(1)
    return bool((rows - rows[0]).abs().max() <= near * rows.abs().max())


def _stays(weight: torch.Tensor | None) -> bool:
    """Say whether the units of a layer are still alike."""
    here = weight is not None and weight.requires_grad and _is_readable(weight)
    return weight is not None and here and _are_alike(weight, _ALIKE)


def _has_moved(weight: torch.Tensor, first: torch.Tensor) -> bool:
    """Say whether a layer has learned something."""
    own = weight.detach()[0]
    return bool((own - first).abs().max() > _MOVED * own.abs().max())
