"""Watches whether the targets of evaluations are in the units that a model has learned."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.evaluations.evaluation_metrics import EvaluationMetrics
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.patches import Patches

_DISTANCES = {"huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"}
_LEARNED, _EVALUATED = 8, 4  # calls, the latest ones
_PLACES = 16
_LEAST = 32.0  # numbers
_FOLLOWS = 0.5  # correlation: of what is predicted, in whatever units
_CLOSELY = 0.8  # where only the deviations differ: predictions that know little vary little
_LATE = 0.5  # of the run: a model that has just begun predicts hardly anything
_NEAR, _FAR = 1.0, 3.0  # deviations between the means, in training and in an evaluation
_ALIKE, _APART = 3.0, 4.0  # by how much one deviation is larger than the other
_LARGEST = 2**20


@dataclass(slots=True)
class _Moments:
    """Of predictions and targets how many there are, their sums, squares and products, and when."""

    source: str
    latest: deque[torch.Tensor]
    step: int = 0

    def add(self, scores: torch.Tensor, target: torch.Tensor) -> None:
        """Take in a call; what is computed stays where it is."""
        wide = torch.float32 if scores.device.type == "mps" else torch.float64
        s, t = (each.detach().flatten().to(wide) for each in (scores, target))
        count = s.new_full((), len(s))
        rows = [count, s.sum(), t.sum(), (s * s).sum(), (t * t).sum(), (s * t).sum()]
        self.latest.append(torch.stack(rows))

    def read(self) -> tuple[float, float, float] | None:
        """Return the correlation, the means' distance in deviations, and the deviations' ratio."""
        total = torch.stack([each.cpu().double() for each in self.latest]).sum(0).tolist()
        count, s, t, ss, tt, st = total
        if count < _LEAST:
            return None
        own, other = ss / count - (s / count) ** 2, tt / count - (t / count) ** 2
        if not (own > 0 and other > 0):
            return None
        both = st / count - s * t / count**2
        gap = abs(s - t) / count / sqrt(max(own, other))
        return both / sqrt(own * other), gap, sqrt(other / own)


class TargetScales(Watcher):
    """
    The Probe event "target scale": predictions that follow the targets of an evaluation elsewhere.

    They are correlated as in training, where both are of one size. measured: how far the mean of
    the targets is from that of the predictions, in the larger of both deviations; reference: the
    deviation of the targets over that of the predictions.
    """

    makes = ("Probe:target scale",)
    relies_on = ("EvaluationMetrics", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._learned: dict[str, _Moments] = {}
        self._evaluated: dict[str, _Moments] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions, and of what evaluations predict."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
        self.recorder.watcher(EvaluationMetrics).listeners.append(self._on_pair)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        learned = [found for each in self._learned.values() if (found := each.read())]
        if not learned or not all(_is_near(*each) for each in learned):
            return
        for each in self._evaluated.values():
            found = each.read() if each.step >= _LATE * self.recorder.steps else None
            if found is None or found[0] < _FOLLOWS:
                continue
            self.looked.add("target scale")
            follows, gap, ratio = found
            is_apart = follows >= _CLOSELY and not 1 / _APART < ratio < _APART
            if gap > _FAR or is_apart:
                yield make_probe("target scale", gap, ratio, source=each.source)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Take in what a distance is given."""
        if tally.function not in _DISTANCES or not _are_pairs(scores, target):
            return
        windows = self.recorder.going or self.recorder.windows
        if tally.evaluation:
            self._take(self._evaluated, tally.source, _EVALUATED, scores, target)
        elif value.requires_grad and (not windows or windows[-1].is_surveyed):
            self._take(self._learned, tally.source, _LEARNED, scores, target)

    def _on_pair(self, place: str, scores: Any, target: Any) -> None:
        """Take in what an evaluation without a loss predicts."""
        if _are_pairs(scores, target):
            self._take(self._evaluated, place, _EVALUATED, scores, target)

    def _take(
        self,
        known: dict[str, _Moments],
        source: str,
        most: int,
        scores: torch.Tensor,
        target: torch.Tensor,
    ) -> None:
        """Take in a call at a place; there are only so many places."""
        if source not in known and len(known) >= _PLACES:
            return
        own = known.setdefault(source, _Moments(source, deque(maxlen=most)))
        own.step = self.recorder.steps
        own.add(scores, target)


def _are_pairs(scores: Any, target: Any) -> bool:
    """Say whether these are predictions and what they should be, number for number."""
    tensors = isinstance(scores, torch.Tensor) and isinstance(target, torch.Tensor)
    if not tensors or not 0 < scores.numel() == target.numel() <= _LARGEST:
        return False
    real = scores.is_floating_point() and target.is_floating_point()
    return real and scores.device == target.device and not target.requires_grad


def _is_near(follows: float, gap: float, ratio: float) -> bool:
    """Say whether predictions follow their targets, and are of the same size."""
    return follows >= _FOLLOWS and gap < _NEAR and 1 / _ALIKE < ratio < _ALIKE
