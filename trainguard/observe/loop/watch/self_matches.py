"""Watches losses over the pairs of a batch: whether each sample is compared with itself too."""

from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.loss_calls import LossCalls
from trainguard.observe.loop.watch.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.patches import Patches

_CALLS = 8  # of each place that are looked at: what is so in them is so in all
_LEAST = 8  # samples
_MOST = 4096
_NEAR = 1e-3  # of the spread of the scores: what rounding and half precision make of one number


class SelfMatches(Watcher):
    """The Probe event "self": a table of scores whose diagonal is the same and the highest."""

    makes = ("Probe:self",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._calls: dict[str, tuple[int, int]] = {}  # by place: tables, and those that are found

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return the places where each table is one."""
        for source, (tables, found) in self._calls.items():
            if found == tables:
                yield Probe(
                    probe="self", measured=float(found), reference=float(tables), source=source
                )

    @shielded
    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look at a table of as many scores as there are samples, in each row."""
        tables, found = self._calls.get(tally.source, (0, 0))
        if tables >= _CALLS or tally.function != "cross_entropy":
            return
        square = scores.dim() == 2 and scores.shape[0] == scores.shape[1]
        if not square or not _LEAST <= len(scores) <= _MOST or not value.requires_grad:
            return
        if target.dim() != 1 or target.is_floating_point():
            return
        self.looked.add("self")
        told = _compares_with_itself(scores.detach(), target)
        self._calls[tally.source] = tables + 1, found + told


def _compares_with_itself(scores: torch.Tensor, target: torch.Tensor) -> bool:
    """Say whether the diagonal is one number, the highest of each row, and never the target."""
    own, order = scores.diagonal(), torch.arange(len(scores), device=target.device)
    near = _NEAR * float(scores.max() - scores.min())
    if not 0 < near < float("inf") or bool((target == order).any()):
        return False
    same = float(own.max() - own.min()) <= near
    return same and bool((scores.max(1).values - own <= near).all())
