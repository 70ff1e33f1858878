"""Watches how far a step moves its parameters, on a sample of their elements."""

from math import inf, nan
from typing import Any

import torch

from trainguard.observe.loop.deferred import Deferred
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.fingerprint import sample_elements

_PARAMETERS = 32
_ELEMENTS = 64


class UpdateNorms(Watcher):
    """The columns update and weight, on surveyed steps."""

    makes = ("update", "weight")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._before: dict[int, torch.Tensor] = {}

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Remember some elements of the parameters."""
        # L-BFGS moves them between the calls of its closure: the first look counts.
        if window.is_surveyed and window.parameters and id(window) not in self._before:
            self._before[id(window)] = _sample(window.parameters)
        return {}

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Measure how far they have moved."""
        before = self._before.pop(id(window), None)
        if before is None:
            return {}
        now = _sample(window.parameters)
        if now.shape != before.shape:  # parameters were added in between
            return {}
        both = torch.stack([torch.linalg.vector_norm(now - before), torch.linalg.vector_norm(now)])
        return {
            "update": Deferred(both, lambda n: _sound(n[0])),
            "weight": Deferred(both, lambda n: n[1]),
        }


def _sample(parameters: list[torch.Tensor]) -> torch.Tensor:
    """Return evenly chosen elements of evenly chosen parameters, as one vector of float32."""
    chosen = parameters[:: -(-len(parameters) // _PARAMETERS)]
    parts = []
    for parameter in chosen:
        part = sample_elements(parameter, _ELEMENTS)
        part = torch.view_as_real(part).reshape(-1) if part.is_complex() else part
        parts.append(part.float())
    return torch.cat([part.to(parts[0].device) for part in parts])


def _sound(value: float) -> float:
    """Return a number, or nan for one that says nothing."""
    return value if value < inf else nan
