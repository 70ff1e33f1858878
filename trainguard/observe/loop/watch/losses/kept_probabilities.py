"""Watches ratios of probabilities: whether those of the policy that acted are kept."""

from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.losses.policy_weights import (
    PolicyWeights,
    is_log_probability,
    parts_of_sum,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_MOST_NODES = 4000


class KeptProbabilities(Watcher):
    """
    The Probe event "ratio": steps with a ratio of new to old probabilities that is one throughout.

    Only of steps between which no action was drawn: after the first of them the policy is another
    than the one that acted. measured: how many, reference: of how many that were looked at.
    """

    makes = ("Probe:ratio",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._ones = 0
        self._latest = -1  # how many steps there were at the latest loss with a ratio
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask when actions were drawn."""
        self._policy = self.recorder.watcher(PolicyWeights)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for ratios in the graph of a loss."""
        drawn = self._policy.drawn_at
        if drawn is None or loss.grad_fn is None:
            return
        nodes = autograd_graph.below(loss.grad_fn, _MOST_NODES)
        ratios = [ratio for node in nodes if (ratio := _ratio_of(node)) is not None]
        if not ratios:
            return
        steps, latest = self.recorder.steps, self._latest
        self._latest = steps
        if drawn <= latest < steps:
            self.looked.add("ratio")
            self._source = self._source or caller()
            same = torch.stack([(ratio == 1).all() for ratio in ratios]).all()
            self.recorder.reads.ask(self, [same], self._take)

    def finish(self) -> Iterable[Event]:
        """Return how many there were."""
        if self._ones:
            yield make_probe("ratio", self._ones, self._looks, source=self._source)

    def _take(self, same: list[torch.Tensor]) -> None:
        """Count a look."""
        self._looks += 1
        self._ones += bool(same[0])


def _ratio_of(node: Node) -> torch.Tensor | None:
    """Return a ratio that is made of the logarithms of two probabilities, one of them constant."""
    if kind_of(node) != "ExpBackward":
        return None
    (before, _), *_ = node.next_functions
    if before is None or kind_of(before) != "SubBackward":
        return None
    live = [inner for inner, _ in before.next_functions if inner is not None]
    if len(live) != 1 or not any(map(is_log_probability, parts_of_sum(live[0]))):
        return None
    made = autograd_graph.saved(node, "result")
    return None if made is None else made.detach()
