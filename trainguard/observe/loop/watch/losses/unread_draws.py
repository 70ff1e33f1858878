"""Watches log-probabilities that are learned: whether anything but them has read what was drawn."""

from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.policy_weights import PolicyWeights
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import place_of, user_frames
from trainguard.observe.tools.written_calls import asks_of_its_own_draw

_UNREAD = "trainguard: of a draw that nothing reads"
_MOST_NODES = 20000


class UnreadDraws(Watcher):
    """
    The Probe event "unread draw": losses that learn how likely a draw is that nothing else reads.

    measured: how many of them; reference: of how many that were looked at, while there was one.
    """

    makes = ("Probe:unread draw",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._drawn = self._seen = self._found = 0
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of log-probabilities."""
        self.recorder.watcher(PolicyWeights).listeners.append(self._look)

    @shielded
    def _look(self, _policy: Any, given: tuple[Any, ...], result: Any) -> None:
        """Mark the log-probability of a draw that the user's line reads alone."""
        value = given[0] if given else None
        if not isinstance(value, torch.Tensor) or value.requires_grad or is_transforming():
            return
        if not isinstance(result, torch.Tensor) or result.grad_fn is None:
            return
        self.looked.add("unread draw")
        frame = next(user_frames(1), None)
        if frame is not None and asks_of_its_own_draw(frame.f_code, frame.f_lineno):
            self._drawn += 1
            node: Node = result.grad_fn
            node.metadata[_UNREAD] = place_of(frame)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look whether a loss learns from one of them."""
        if not self._drawn or loss.grad_fn is None:
            return
        self._seen += 1
        nodes = autograd_graph.below(loss.grad_fn, _MOST_NODES)
        place = next((node.metadata[_UNREAD] for node in nodes if _UNREAD in node.metadata), "")
        self._found += bool(place)
        self._source = self._source or place

    def finish(self) -> Iterable[Event]:
        """Return how many losses learned from such a draw."""
        if self._found:
            yield make_probe("unread draw", self._found, self._seen, source=self._source)
