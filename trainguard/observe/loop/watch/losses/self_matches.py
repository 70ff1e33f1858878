"""Watches losses over the pairs of a batch: whether each sample is compared with itself too."""

from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.patches import Patches

_CALLS = 8  # of each place that are looked at: what is so in them is so in all
_LEAST = 8  # samples
_MOST = 4096
_NEAR = 1e-3  # of how far it is from the others: rounding and half precision make as much


class SelfMatches(Watcher):
    """
    The Probe event "self": a table of scores whose diagonal is the same and the highest.

    The Probe event "view": one in which this is so of the scores at the targets.
    """

    makes = ("Probe:self", "Probe:view")
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._calls: dict[str, list[int]] = {}  # by place: calls, tables, those of each kind

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return the places where each table is one."""
        for source, (_, *counts) in self._calls.items():
            for probe, tables, found in zip(
                ("self", "view"), counts[::2], counts[1::2], strict=True
            ):
                if tables and found == tables:
                    yield make_probe(probe, found, tables, source=source)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look at a table of as many scores as there are samples, or more, in each row."""
        counts = self._calls.setdefault(tally.source, [0] * 5)
        if counts[0] >= _CALLS or tally.function != "cross_entropy" or not value.requires_grad:
            return
        rows, columns = scores.shape if scores.dim() == 2 else (0, 0)
        if not _LEAST <= rows <= _MOST or not rows - 1 <= columns <= _MOST:
            return
        if target.dim() != 1 or target.is_floating_point():
            return
        counts[0] += 1
        scores = scores.detach()
        kinds = {"view": scores.gather(1, target[:, None].clamp(0, columns - 1))[:, 0]}
        order = torch.arange(rows, device=target.device)
        if rows == columns and not bool((target == order).any()):
            kinds["self"] = scores.diagonal()
        for place, kind in ((1, "self"), (3, "view")):
            if kind in kinds:
                self.looked.add(kind)
                counts[place] += 1
                counts[place + 1] += _is_one_number(scores, kinds[kind])


def _is_one_number(scores: torch.Tensor, own: torch.Tensor) -> bool:
    """Say whether one score of each row is the same number in all, and the highest."""
    typical = scores[scores.isfinite()].median()  # what is masked may be a large number
    near = _NEAR * float((own.mean() - typical).abs().nan_to_num())
    same = float(own.max() - own.min()) <= near
    return near > 0 and same and bool((scores.max(1).values - own <= near).all())
