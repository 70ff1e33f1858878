"""Watches ratios of probabilities that are clipped: whether that bounds what a policy gains."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.affine_parts import (
    SumPart,
    affine_parts,
    parts_of_choice,
)
from trainguard.observe.loop.watch.gradients.autograd_graph import (
    Node,
    constants_of,
    kind_of,
    live_inputs,
)
from trainguard.observe.loop.watch.losses.policy_weights import (
    PolicyWeights,
    is_log_probability,
    parts_of_sum,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_CLIP = "ClampBackward"
_CHOICES = {"MaximumBackward", "MinimumBackward"}


class ClippedRatios(Watcher):
    """
    The Probe event "clipped ratio": objectives that are no lower bound of what a policy gains.

    Of losses that choose the smaller or the larger one of two, in one of which a ratio of
    probabilities is clipped. measured: losses in which that is done wrongly, as the label says;
    reference: losses that do so.
    """

    makes = ("Probe:clipped ratio",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = 0
        self._wrong: Counter[str] = Counter()
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for a choice between a ratio and the same one clipped."""
        drawn = self.recorder.watcher(PolicyWeights).drawn_at
        if drawn is None or self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        parts = list(affine_parts((loss.grad_fn, 0), ends=_is_weighed))
        parts += [
            inner for part in parts for inner in parts_of_choice(part, _is_weighed)
        ]  # of a second bound
        found = [wrong for part in parts if (wrong := _judge(part)) is not None]
        if found:
            self.looked.add("clipped ratio")
            self._looks += 1
            wrong = next(filter(None, found), "")
            if wrong:
                self._wrong[wrong] += 1
                self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        for label, times in self._wrong.items():
            rest = {"label": label, "source": self._source}
            yield make_probe("clipped ratio", times, self._looks, **rest)


def _judge(part: SumPart) -> str | None:
    """Say what is wrong with how a part of a loss clips a ratio; "" is nothing, None no ratio."""
    node, kind = part.node, kind_of(part.node)
    sides = [inner.node for inner in parts_of_choice(part, _is_weighed)]
    if len(sides) == 2:
        if any(_is_clipped_product(side) for side in sides) and any(map(_is_weighed, sides)):
            return "what is clipped is the ratio times its weight"
        if all(map(_is_weighed, sides)) and [_has_clip(side) for side in sides].count(True) == 1:
            is_lower = (kind == "MaximumBackward") == (part.factor > 0)
            return "" if is_lower else "of the two gains, the larger one is taken"
    if _is_weighed(node) and kind_of(_factor(node)) in _CHOICES:
        weights = next(constants_of(node))
        both = weights.is_cpu and bool((weights > 0).any() & (weights < 0).any())
        clips = [kind_of(inner) == _CLIP for inner in live_inputs(_factor(node))]
        if both and clips.count(True) == 1:
            return "the two ratios are compared before they are weighed"
    return None


def _factor(node: Node) -> Node:
    """Return what a product weighs."""
    return live_inputs(node)[0]


def _has_clip(node: Node) -> bool:
    """Say whether what a product weighs is clipped."""
    return kind_of(_factor(node)) == _CLIP


def _is_clipped_product(node: Node) -> bool:
    """Say whether a node clips what has been weighed already."""
    return kind_of(node) == _CLIP and any(map(_is_weighed, live_inputs(node)))


def _is_weighed(node: Node) -> bool:
    """Say whether a node multiplies ratios of probabilities by constants, one for each."""
    live = live_inputs(node)
    if kind_of(node) != "MulBackward" or len(live) != 1:
        return False
    weights = next(constants_of(node), None)
    return weights is not None and weights.numel() > 1 and _is_ratio(live[0])


def _is_ratio(node: Node) -> bool:
    """Say whether something is an exponential of log-probabilities, perhaps clipped or chosen."""
    for _ in range(3):
        if kind_of(node) == "ExpBackward":
            return any(map(is_log_probability, parts_of_sum(_factor(node))))
        live = live_inputs(node)
        if kind_of(node) not in {_CLIP, *_CHOICES} or not live:
            return False
        node = live[0]
    return False
