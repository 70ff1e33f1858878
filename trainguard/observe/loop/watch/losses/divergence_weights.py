"""Watches what a divergence of codes weighs beside the distance of what is made of them."""

from collections.abc import Iterable
from math import isclose
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.affine_parts import SumPart, elements_of
from trainguard.observe.loop.watch.gradients.autograd_graph import kind_of, saved
from trainguard.observe.loop.watch.losses.term_signs import divergences
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {2, 8, 32, 64, 128, 192, 256, 512, 1024, 2048, 4096}  # that are looked at
_FEATURES = 16  # of a sample: fewer make no difference that tells
_NEAR = 1e-3  # of a weight: 32 bits round by less
# Distances of torch, and the reductions that they keep: a mean, and a sum.
_DISTANCES = {
    "BinaryCrossEntropyBackward",
    "BinaryCrossEntropyWithLogitsBackward",
    "HuberLossBackward",
    "L1LossBackward",
    "MseLossBackward",
    "SmoothL1LossBackward",
}
_MEAN = 1
_COLLAPSED = 0.1  # nats of a sample: what the codes tell of it


class DivergenceWeights(Watcher):
    """
    The Probe event "divergence weight": a divergence that weighs as much as all features together.

    Summed over codes, beside a distance that is a mean over the features of a sample. measured: how
    many times too much it weighs, reference: the features of a sample, or of a batch; step: looks,
    after those of a warmup; label: "collapsed" where the divergence of a sample was below a tenth
    at the last look.
    """

    makes = ("Probe:divergence weight",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks: list[tuple[float, int]] = []  # the weight, and the features that it fits
        self._divergence = float("inf")
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Weigh the terms of a loss against each other, for each element."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None or loss.numel() != 1:
            return
        parts = list(elements_of(loss.grad_fn))
        weights = [2 * abs(factor) for factor in divergences(parts)]
        distances = [own for part in parts if (own := _distance(part)) is not None]
        if not weights or len(distances) != 1:
            return
        self.looked.add("divergence weight")
        factor, shape = distances[0]
        features = shape.numel() // max(1, shape[0])
        weight = weights[0] / factor
        wholes = (features, shape.numel()) if features >= _FEATURES else ()
        fitting = [whole for whole in wholes if isclose(weight, whole, rel_tol=_NEAR)]
        self._looks.append((weight, fitting[0] if fitting else 0))
        self._source = self._source or caller()
        numbers = _divergence_of(parts)
        if numbers is not None:
            self.recorder.reads.ask(self, [numbers], self._take)

    def _take(self, found: list[torch.Tensor]) -> None:
        """Take down the divergence of a sample."""
        self._divergence = float(found[0])

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        while self._looks and not self._looks[0][1] and self._looks[0][0] < self._looks[-1][0]:
            del self._looks[0]  # of a warmup
        fitting = {features for _, features in self._looks}
        if len(fitting) == 1 and 0 not in fitting:
            label = "collapsed" if self._divergence < _COLLAPSED else ""
            rest = {"step": len(self._looks), "label": label, "source": self._source}
            (features,) = fitting
            yield make_probe("divergence weight", features, features, **rest)


def _distance(part: SumPart) -> tuple[float, torch.Size] | None:
    """Return what each element of a distance is multiplied by, and the shape of its input."""
    own = saved(part.node, "self") if kind_of(part.node) in _DISTANCES else None
    if not isinstance(own, torch.Tensor) or own.dim() < 2:
        return None
    mean = getattr(part.node, "_saved_reduction", 0) == _MEAN
    return abs(part.factor) / (own.numel() if mean else 1), own.shape


def _divergence_of(parts: list[SumPart]) -> torch.Tensor | None:
    """Return the mean divergence of a sample, of the squares and exponentials in a loss."""
    squares = [saved(part.node, "self") for part in parts if kind_of(part.node) == "PowBackward"]
    spreads = [saved(part.node, "result") for part in parts if kind_of(part.node) == "ExpBackward"]
    for mean, variance in zip(squares, spreads, strict=False):
        if mean is not None and variance is not None and mean.shape == variance.shape:
            with torch.no_grad():
                each = mean.detach().square() + variance.detach() - 1 - variance.detach().log()
                return 0.5 * each.flatten(1).sum(1).mean() if mean.dim() > 1 else None
    return None
