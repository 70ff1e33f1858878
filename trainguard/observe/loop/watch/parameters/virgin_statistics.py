"""Watches batch statistics that a model learns with and that no batch has ever moved."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward

_MOST = 64  # looks
_BATCH_NORM = nn.modules.batchnorm._NormBase  # noqa: SLF001 what all of them derive from


class VirginStatistics(Watcher):
    """
    The Probe event "virgin statistics": passes that learn in evaluation mode.

    measured: those whose batch statistics are all what they were made with, a mean of 0 and a
    variance of 1; reference: all that have some. label: a layer.
    """

    makes = ("Probe:virgin statistics",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._virgin = self._looks = 0
        self._label = self._source = ""

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at the statistics of a model that learns in evaluation mode."""
        if not forward.gradients or module.training or self._looks >= _MOST:
            return
        layers = [layer for layer in module.modules() if _learns_asleep(layer)]
        if layers:
            self._looks += 1
            self._label = self._label or self.recorder.names.module(layers[0])
            moved = [_has_moved(layer) for layer in layers]
            self.recorder.reads.ask(self, moved, self._take)

    def finish(self) -> Iterable[Event]:
        """Return how many passes had statistics of nothing."""
        if self._looks:
            self.looked.add("virgin statistics")
        if self._virgin:
            yield make_probe("virgin statistics", self._virgin, self._looks, label=self._label)

    def _take(self, moved: list[torch.Tensor]) -> None:
        """Count a pass whose statistics are all as they were made."""
        self._virgin += not any(map(bool, moved))


def _learns_asleep(layer: nn.Module) -> bool:
    """Say whether a layer learns its scale, and normalises by statistics that it keeps."""
    if not isinstance(layer, _BATCH_NORM) or layer.training or layer.running_mean is None:
        return False
    return layer.weight is not None and layer.weight.requires_grad


def _has_moved(layer: Any) -> torch.Tensor:
    """Say whether the statistics of a layer are others than those that it was made with."""
    mean: torch.Tensor = layer.running_mean.detach()
    variance: torch.Tensor = layer.running_var.detach()
    return (mean != 0).any() | (variance != 1).any()
