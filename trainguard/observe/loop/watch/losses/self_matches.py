"""Watches losses for what is compared with itself: each sample of a batch, or a whole target."""

from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import DISTANCES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.patches import Patches

_CALLS = 8  # of each place that are looked at: what is so in them is so in all
_LEAST = 8  # samples
_MOST = 4096
_ALIKE = 1e-5  # of a probability: an exponential and a softmax round otherwise
_NODES = 64  # from the loss: the sum of its terms is near
_NEAR = 1e-3  # of how far it is from the others: rounding and half precision make as much


class SelfMatches(Watcher):
    """
    The Probe event "self": a table of scores whose diagonal is the same and the highest.

    The Probe event "view": one in which this is so of the scores at the targets.

    And "itself": a target that is compared with itself, neither of which has a graph, in each of
    the first calls of a place. reference is 1 where a number without a graph is in a loss as well.
    """

    makes = ("Probe:self", "Probe:view", "Probe:itself")
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._calls: dict[str, list[int]] = {}  # by place: calls, tables, those of each kind
        self._same: dict[str, list[int]] = {}  # by place: calls without a graph, those of the same
        self._adds = False  # whether something without a graph was in a loss beside them

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

        for source, (calls, same) in self._same.items():
            if calls == same == _CALLS:
                yield make_probe("itself", same, self._adds, source=source)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """See whether something without a graph is added up in a loss."""
        if any(same for _, same in self._same.values()) and not self._adds:
            nodes = autograd_graph.below(loss.grad_fn, _NODES) if loss.grad_fn is not None else ()
            self._adds = any(_adds_a_constant(node) for node in nodes)

    def _compare_sides(self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor) -> None:
        """See whether both sides of a comparison without a graph are the same."""
        known = self._same.setdefault(tally.source, [0, 0])
        if known[0] < _CALLS and scores.numel() >= _LEAST and scores.is_cpu:
            known[0] += 1
            self.looked.add("itself")
            log_target = (tally.options or {}).get("log_target", False)
            logs = tally.function == "kl_div" and not log_target
            known[1] += _are_same(scores.exp() if logs else scores, target, tally.function)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look at a table of as many scores as there are samples, or more, in each row."""
        compares = tally.function == "kl_div" or tally.function in DISTANCES
        if compares and not (value.requires_grad or tally.evaluation):
            self._compare_sides(tally, scores, target)
            return
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


def _are_same(given: torch.Tensor, target: torch.Tensor, function: str) -> bool:
    """Say whether a loss compares some numbers, of which not all are one, with themselves."""
    if given.shape != target.shape or bool((given == given.reshape(-1)[0]).all()):
        return False
    near = _ALIKE if function == "kl_div" else 0.0
    return bool(((given - target).abs() <= near).all())


def _adds_a_constant(node: Any) -> bool:
    """Say whether an operation adds something that has no graph."""
    before = [each for each, _ in node.next_functions]
    return autograd_graph.kind_of(node) == "AddBackward" and len(before) > 1 and None in before
