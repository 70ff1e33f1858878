"""Watches what an evaluation predicts, and what its metrics are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.core.names import metric_of
from trainguard.events.base import Event
from trainguard.events.fit import Metrics
from trainguard.observe.loop.metric_values import Batch, perplexities, values_of
from trainguard.observe.loop.watch.evaluations.evaluation_skill import EvaluationSkill
from trainguard.observe.loop.watch.evaluations.near_targets import (
    NearTargets,
    Pair,
    fit_classes,
    fit_numbers,
)
from trainguard.observe.loop.watch.losses.loss_calls import (
    CROSS_ENTROPIES,
    IGNORED,
    LOGITS,
    LossCalls,
)
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import user_frames

_FIRST = 4  # evaluations that are kept though no metric was said yet
_MOST = 64  # evaluations
_FRAMES = 3  # of the user's code, whose lines tell one evaluation from another
# Numbers that an evaluation predicts: the metrics of more are not computed. And of evaluations that
# are over, how many wait for a step that is looked at more closely anyway.
_LARGEST = 2**20
_FLAT = 2  # axes of what has a number, or scores of classes, for each sample


@dataclass(slots=True, eq=False)
class _Evaluation:
    """
    The scores and targets of one evaluation at one place.

    losses: means of cross-entropies, each with the number of targets that it is a mean of.
    """

    place: str
    key: Any
    step: int
    clock: int = 0
    numbers: int = 0
    batches: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    losses: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class EvaluationMetrics(Watcher):
    """
    The Metrics events, of evaluations whose targets a loss function was given, or a loader served.

    Where there is neither, targets are what lies beside the input in the variables of the caller.

    A long run goes on with it only where a metric is ever said. listeners: are told of the place,
    outputs and targets of passes whose loss is not known.
    """

    makes = ("Metrics",)
    relies_on = ("Batches", "EvaluationSkill", "LoggedValues", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._latest: dict[str, _Evaluation] = {}
        self._over: list[_Evaluation] = []
        self._found: list[Metrics] = []
        self._count = 0
        self._logits = False  # whether there is a loss of logits, each of one class by itself
        self._near = NearTargets()
        self.listeners: list[Callable[[str, Any, Any], None]] = []
        self._measured = False  # whether an evaluation has a loss of torch

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._skill = self.recorder.watcher(EvaluationSkill)
        self._served = self.recorder.watcher(Batches).recent
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep the output of a pass that does not learn, and what was served or lies beside it."""
        place = f"of {forward.module}"
        latest = self._latest.get(place)
        if (latest is None or latest.step != self.recorder.steps) and not self._goes_on():
            return
        targets = self._skill.targets_of(forward, output)[:1]
        pair: Pair | None = (output, targets[0]) if targets else None
        beside = pair is None and not self._measured and self.recorder.steps > 0
        if beside:
            pair = self._near.find(forward.module, inputs, output, _fit_either)
        if pair is None:
            return
        for listener in self.listeners:
            listener(forward.source, *pair)
        lines = tuple(frame.f_lineno for frame in user_frames(_FRAMES)) if beside else ()
        own = self._evaluation(place, lines)
        if own is not None:
            self._add(own, *pair)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Keep what a loss function is given without gradients."""
        self._logits |= tally.function == LOGITS
        if not tally.evaluation or not isinstance(target, torch.Tensor):
            return
        self._measured = True
        own = self._evaluation(tally.source)
        if own is None:
            return
        self._add(own, scores, target)
        if tally.function in CROSS_ENTROPIES and not value.dim():
            ignored = tally.ignored
            own.losses.append((value.detach().clone(), (target != ignored).sum()))

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Measure the evaluations that are over, where a step is looked at more closely."""
        if self._over and window.is_surveyed:
            self._measure_over()
        return {}

    def finish(self) -> Iterator[Event]:
        """Return the metrics of each evaluation."""
        self._over += self._latest.values()
        self._measure_over()
        yield from self._found

    def _evaluation(self, place: str, lines: tuple[int, ...] = ()) -> _Evaluation | None:
        """
        Return the evaluation at a place that goes on, or the next one; None after too many.

        lines: those that ask for it, where no loader tells one set of samples from another.
        """
        key = self.recorder.steps, self._served[-1].turn if self._served else 0, lines
        own = self._latest.get(place)
        if own is None or own.key != key:
            if not self._goes_on():
                return None
            if own is not None:
                self._over.append(own)
                if sum(each.numbers for each in self._over if each.batches) > _LARGEST:
                    self._measure_over()
            self._count += 1
            own = self._latest[place] = _Evaluation(place, key, self.recorder.steps)
        own.clock = self.recorder.tick()
        return own

    def _add(self, own: _Evaluation, scores: Any, target: Any) -> None:
        """Add a batch to an evaluation."""
        if is_transforming() or not _fit(scores, target):
            return
        own.numbers += scores.numel()
        if own.numbers > _LARGEST:
            own.batches.clear()
        else:
            own.batches.append((scores.detach().clone(), target.detach().clone()))

    def _goes_on(self) -> bool:
        """Say whether another evaluation is looked at."""
        if self._count >= _MOST:
            return False
        said = self.recorder.watcher(LoggedValues).names()
        return self._count < _FIRST or any(metric_of(name) for name in said)

    def _measure_over(self) -> None:
        """Ask for the numbers of the evaluations that are over, and compute their metrics."""
        over, self._over = self._over, []
        pairs = [pair for own in over for pair in (*own.batches, *own.losses)]
        sizes = [(own, len(own.batches), len(own.losses)) for own in over]
        for own in over:
            own.batches, own.losses = [], []

        def take(tensors: list[torch.Tensor]) -> None:
            """Compute the metrics of each."""
            here = iter(tensors)
            for own, batches, losses in sizes:
                rows = [(_as_rows(next(here)), _as_rows(next(here))) for _ in range(batches)]
                means = [(float(next(here)), int(next(here))) for _ in range(losses)]
                self._measure(own, rows, means)

        self.recorder.reads.ask(self, [tensor for pair in pairs for tensor in pair], take)

    def _measure(
        self, own: _Evaluation, batches: list[Batch], losses: list[tuple[float, int]]
    ) -> None:
        """Compute the metrics of an evaluation from its numbers."""
        alike = len({(scores.shape[1:], target.shape[1:]) for scores, target in batches}) == 1
        metrics = values_of(batches, logits=self._logits) if alike else ()
        values = (*metrics, *perplexities(losses))
        if values:
            self._found.append(
                Metrics(
                    source=own.place,
                    step=own.step,
                    clock=own.clock,
                    batches=max(len(batches), len(losses)),
                    values=tuple(dict.fromkeys(values)),
                )
            )


def _fit_either(scores: torch.Tensor, target: torch.Tensor, *, known: bool) -> Pair | None:
    """Return scores and classes, or scores and numbers, where they fit."""
    classes = fit_classes(scores, target, known=known, ignored=IGNORED)
    return classes or fit_numbers(scores, target, known=known)


def _fit(scores: Any, target: Any) -> bool:
    """Say whether these are predictions of samples, and what they should be."""
    if type(scores) is not torch.Tensor or type(target) is not torch.Tensor:
        return False
    if not scores.is_floating_point() or target.is_complex() or not scores.numel():
        return False
    if scores.layout != torch.strided or not scores.dim() or not target.dim():
        return False
    if scores.dim() > _FLAT:  # as masks of pictures
        return scores.shape == target.shape
    classes = scores.dim() == 2 and scores.shape[:1] == target.shape
    return classes or scores.numel() == target.numel()


def _as_rows(tensor: torch.Tensor) -> Any:
    """Return the numbers as an array, a column of one as a vector."""
    rows = tensor.flatten(1).squeeze(1) if tensor.dim() > 1 else tensor
    return array_of(rows.double() if rows.is_floating_point() else rows)
