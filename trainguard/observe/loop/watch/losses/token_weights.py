"""Watches how much a token weighs in each of the micro-batches that a step is made of."""

from collections.abc import Iterable
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_STEPS = 64  # that are looked at, whatever they are made of
_MOST = 64  # micro-batches
_OPERATIONS = 16  # between a loss function and what is handed to backward
_PICKED = {"IndexBackward", "MaskedSelectBackward"}


class TokenWeights(Watcher):
    """
    The Probe event "token weight": micro-batches in which a token weighs more than in others.

    Of the targets that a cross-entropy does not ignore, whether torch takes the mean or the team.
    measured: the median, over the steps, of how many times as much one weighs in a micro-batch as
    in another; step: how many steps; reference: 1.
    """

    makes = ("Probe:token weight",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._count: torch.Tensor | None = None  # targets of the call before the next backward
        self._is_mean = False
        self._calls = 0
        self._parts: list[tuple[float, torch.Tensor, bool] | None] = []
        self._at = self._looks = 0  # steps made before these parts, and those looked at
        self._ratios: list[float] = []
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Count the targets of a call that are not ignored."""
        if not value.requires_grad or self._looks >= _STEPS:
            return
        self._calls += 1
        fits = tally.function in CROSS_ENTROPIES
        self._count, self._is_mean = None, tally.reduction == "mean"
        if fits and isinstance(target, torch.Tensor) and not target.is_floating_point():
            ignored = target == tally.ignored
            self._count = torch.stack([(~ignored).sum(), ignored.sum()])

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down what each target of a micro-batch is multiplied by."""
        if self._looks >= _STEPS:
            self.recorder.dismiss(self)
            return
        calls, self._calls = self._calls, 0
        count, self._count = self._count, None
        if self._at != self.recorder.steps:
            self._at, self._parts = self.recorder.steps, []
        if len(self._parts) < _MOST:
            factor = _factor_in(loss) if calls == 1 and count is not None else None
            part = None
            if count is not None and factor is not None:
                part = factor, count, self._is_mean
            self._parts.append(part)

    def after_step(self, window: Window) -> Columns:
        """Hold the micro-batches of a step against each other."""
        parts, self._parts = self._parts, []
        known = [part for part in parts if part is not None]
        self._looks += 1
        if 1 < len(known) == len(parts):
            self._source = self._source or caller()
            factors = [(factor, is_mean) for factor, _, is_mean in known]

            def take(numbers: list[torch.Tensor]) -> None:
                """Take in how much a target weighs in each."""
                rows = [row.tolist() for row in numbers]
                if all(kept for kept, _ in rows) and any(left for _, left in rows):
                    counts = [kept for kept, _ in rows]
                    each = [
                        abs(f) / (n if is_mean else 1)
                        for (f, is_mean), n in zip(factors, counts, strict=True)
                    ]
                    self._ratios.append(max(each) / max(min(each), 1e-30))

            self.recorder.reads.ask(self, [count for _, count, _ in known], take)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the ratio of most steps."""
        if self._ratios:
            self.looked.add("token weight")
            middle = sorted(self._ratios)[len(self._ratios) // 2]
            steps = len(self._ratios)
            if middle > 1:
                yield make_probe("token weight", middle, 1.0, step=steps, source=self._source)


def _factor_in(loss: torch.Tensor) -> float | None:
    """Return what a loss multiplies the elements of the one marked value by that it is made of."""
    node, factor = loss.grad_fn, 1.0
    for _ in range(_OPERATIONS):
        if node is None or autograd_graph.token_at(node) is not None:
            return None if node is None else factor
        live = [place for place, (before, _) in enumerate(node.next_functions) if before]
        by = _times_each(node, live[0]) if len(live) == 1 else None
        if by is None:
            return None
        node, factor = node.next_functions[live[0]][0], factor * by
    return None


def _times_each(node: autograd_graph.Node, place: int) -> float | None:
    """Return what each element of an input weighs in a sum or mean, or is multiplied by."""
    kind, count = autograd_graph.kind_of(node), autograd_graph.elements(node)
    if kind in _PICKED:
        return 1.0
    if kind in ("MeanBackward", "SumBackward") and count:
        made = torch.Size(autograd_graph.shape_made(node)).numel()
        return made / count if kind == "MeanBackward" else 1.0
    by = autograd_graph.constant_at(node, place)
    if by is None and any(map(autograd_graph.is_mask, autograd_graph.constants_of(node))):
        return 1.0
    return by if isinstance(by, float) else None
