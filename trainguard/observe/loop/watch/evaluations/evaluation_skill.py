"""Watches how right a model is about classes in evaluation, beside always naming the commonest."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.fit import Skill
from trainguard.observe.loop.watch.losses.class_counts import count_wanted
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_PLACES = 32
_LARGEST = 2**22  # elements of the scores of a batch


@dataclass(slots=True)
class _Score:
    """
    What was right at one place, in the evaluation at one step.

    counts, hits: how many rows had each class, and for how many of these it was named.
    right, rows: numbers, on an accelerator tensors that are fetched at the end.
    """

    source: str
    step: int
    right: Any = 0
    rows: Any = 0
    counts: torch.Tensor | None = None
    hits: torch.Tensor | None = None
    evaluations: int = 1


class EvaluationSkill(Watcher):
    """
    The Skill events, of the latest evaluation at each place.

    The classes are those that a loss function is given, or that a loader served with the input.
    """

    makes = ("Skill",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._scores: dict[tuple[str, int], _Score] = {}  # by place, and number of classes

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Compare the output of a pass that does not learn with the classes that were served."""
        for target in self.targets_of(forward, output):
            self._add(f"of {forward.module}", output, target)

    def targets_of(self, forward: Forward, output: Any) -> list[torch.Tensor]:
        """Return what a loader served with the input of a pass that does not learn."""
        if forward.gradients or not isinstance(output, torch.Tensor):
            return []
        given = next(iter(self.recorder.given), None)
        served = self._batches.origin(given) if given is not None else None
        targets = served.alive()[1:] if served is not None and served.paired else []
        known = self._batches.copies
        return [own for t in targets if (own := known.find_there(t, output.device)) is not None]

    def finish(self) -> Iterator[Event]:
        """Return the latest evaluation at each place."""
        for score in self._scores.values():
            if score.counts is not None and score.hits is not None and int(score.rows):
                recall, spread = _recall_classes(score.counts.double(), score.hits.double())
                yield Skill(
                    source=score.source,
                    step=score.step,
                    rows=int(score.rows),
                    right=int(score.right),
                    commonest=int(score.counts.max()),
                    rarest=int(score.counts.min()),
                    recall=recall,
                    spread=spread,
                    evaluations=score.evaluations,
                )

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Compare what a loss function is given without gradients."""
        if tally.evaluation and tally.function in CROSS_ENTROPIES:
            self._add(tally.source, scores, target)

    def _add(self, place: str, scores: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch to the evaluation of a place, or begin the next one."""
        if not _are_scores(scores, target):
            return
        inside = (target >= 0) & (target < scores.shape[1])
        if target.is_cpu and not inside.all():
            return
        key = place, int(scores.shape[1])  # heads of one model may have others
        step, known = self.recorder.steps, self._scores.get(key)
        if known is None and len(self._scores) >= _PLACES:
            return
        if known is None:
            source = place if ":" in place else caller(4)
            known = self._scores[key] = _Score(source, step)
        elif known.step != step:
            more = known.evaluations + 1
            known = self._scores[key] = _Score(known.source, step, evaluations=more)
        with torch.no_grad():
            sound = inside.all()  # of a batch with other numbers nothing counts
            named = scores.argmax(1) == target
            counts = count_wanted(target, inside, scores.shape[1]) * sound
            hits = count_wanted(target, inside & named, scores.shape[1]) * sound
            known.counts = counts if known.counts is None else known.counts + counts
            known.hits = hits if known.hits is None else known.hits + hits
            right, rows = named.sum() * sound, sound * len(target)
            known.right = known.right + (right.tolist() if right.is_cpu else right)
            known.rows = known.rows + (len(target) if right.is_cpu else rows)


def _recall_classes(counts: torch.Tensor, hits: torch.Tensor) -> tuple[float, float]:
    """Return how far the mean recall of classes is above chance, and its deviation by chance."""
    came = counts > 0
    share = 1 / float(came.sum())
    above = float((hits[came] / counts[came]).mean()) - share
    return above, share * float((share * (1 - share) / counts[came]).sum()) ** 0.5


def _are_scores(scores: torch.Tensor, target: Any) -> bool:
    """Say whether these look like scores of several classes, and the class of each row."""
    if not isinstance(target, torch.Tensor) or scores.dim() != 2 or scores.numel() > _LARGEST:
        return False
    integral = not (target.is_floating_point() or target.is_complex()) and target.numel() > 0
    fits = target.shape == scores.shape[:1] and scores.shape[1] > 1
    return bool(integral and fits and scores.is_floating_point())
