"""Watches what a divergence of codes weighs beside the distance of what is made of them."""

from collections.abc import Iterable
from math import isclose
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.affine_parts import SumPart, elements_of
from trainguard.observe.loop.watch.gradients.autograd_graph import (
    Node,
    below,
    kind_of,
    saved,
    signed,
)
from trainguard.observe.loop.watch.losses.term_signs import divergences
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {2, 8, 32, 64, 128, 192, 256, 512, 1024, 2048, 4096}  # that are looked at
_FEATURES = 16  # of a sample: fewer make no difference that tells
_CODES = 3  # the same of codes: half of a divergence is as good a choice as all of it
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
_MOST_NODES = 20000
_COLLAPSED = 0.1  # nats of a sample: what the codes tell of it


class DivergenceWeights(Watcher):
    """
    The Probe event "divergence weight": a divergence that weighs as much as all features together.

    Summed over codes, beside a distance that is a mean over the features of a sample. measured: how
    many times too much it weighs, reference: the features of a sample, or of a batch; step: looks,
    after those of a warmup; label: "collapsed" where the divergence of a sample was below a tenth
    at the last look. Or "averaged": a mean over so many codes, as measured, beside a sum of
    features, with no other weight at the last look.
    """

    makes = ("Probe:divergence weight",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks: list[tuple[float, int]] = []  # the weight, and the features that it fits
        self._averaged: list[int] = []  # codes, of the looks at which there is a mean over them
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
        codes = _codes_of(parts)
        summed = factor * shape[0] >= 1 - _NEAR
        averaged = codes is not None and summed and _is_averaged(loss.grad_fn, codes)
        self._averaged.append(codes[-1] if codes is not None and averaged else 0)
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
        codes = self._averaged[0] if len(set(self._averaged)) == 1 else 0
        if codes and isclose(self._looks[-1][0] * codes, 1, rel_tol=_NEAR):
            rest = {"step": len(self._averaged), "label": "averaged", "source": self._source}
            yield make_probe("divergence weight", codes, codes, **rest)


def _distance(part: SumPart) -> tuple[float, torch.Size] | None:
    """Return what each element of a distance is multiplied by, and the shape of its input."""
    own = saved(part.node, "self") if kind_of(part.node) in _DISTANCES else None
    if not isinstance(own, torch.Tensor) or own.dim() < 2:
        return None
    mean = getattr(part.node, "_saved_reduction", 0) == _MEAN
    return abs(part.factor) / (own.numel() if mean else 1), own.shape


def _codes_of(parts: list[SumPart]) -> torch.Size | None:
    """Return the shape of what a divergence has squared, (N, codes), where it is known."""
    squares = (saved(part.node, "self") for part in parts if kind_of(part.node) == "PowBackward")
    sizes = (own.shape for own in squares if own is not None and own.dim() > 1)
    return next((size for size in sizes if size[-1] >= _CODES), None)


def _is_averaged(root: Node, codes: torch.Size) -> bool:
    """Say whether a mean in a graph is over what has the shape of some codes, and over them."""
    for node in below(root, _MOST_NODES):
        if kind_of(node) == "MeanBackward" and saved(node, "self_sym_sizes") == tuple(codes):
            dims = {signed(dim) % len(codes) for dim in saved(node, "dim") or ()}
            if not dims or len(codes) - 1 in dims:
                return True
    return False


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
