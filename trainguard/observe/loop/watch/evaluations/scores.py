"""Watches how many predictions are right where losses are computed, by true and by wrong counts."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.fit import Score
from trainguard.observe.loop.watch.evaluations.evaluation_skill import EvaluationSkill
from trainguard.observe.loop.watch.evaluations.near_targets import (
    NearTargets,
    fit_classes,
    fit_decisions,
)
from trainguard.observe.loop.watch.losses.loss_calls import (
    CROSS_ENTROPIES,
    IGNORED,
    LOGITS,
    LossCalls,
)
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import DENSE, Forward
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches

_LARGEST = 2**22  # elements of the scores of a batch
_SEVERAL = 3  # calls of an evaluation, of which the last one is told
_PLACES = 16
_STRETCHES = 4096  # of all places
_CROSSED = 64  # classes, of which each is counted against each
_NUMPY = (torch.float32, torch.float64)
_WAITING = 2**20  # elements that are put aside until it is known whether an accuracy is ever said

Counts = dict[str, tuple[Any, Any]]  # by each way of counting: what is right, and of how many
Named = dict[int, Any]  # where the highest scores are, by the axis along which


@dataclass(slots=True, eq=False)
class _Stretch:
    """
    The calls of one place that belong together; numbers: right, of, and sum of their ratios.

    waiting: what counts calls that were put aside. latest: what is right in the last call.
    """

    step: int
    turn: int
    classes: int
    evaluation: bool
    sole: bool = True
    clock: int = 0
    calls: int = 0
    numbers: dict[str, Any] = field(default_factory=dict)
    waiting: list[Callable[[], Counts]] = field(default_factory=list)
    latest: tuple[Any, Any] | None = None

    def add(self, counts: Counts) -> None:
        """Add the counts of one call."""
        self.calls += 1
        self.latest = counts.get("right")
        for name, (right, of) in counts.items():
            known = self.numbers.get(name, (0, 0, 0))
            share = right / (of + (of == 0))
            self.numbers[name] = known[0] + right, known[1] + of, known[2] + share

    def count_waiting(self) -> None:
        """Add the counts of what was put aside."""
        waiting, self.waiting = self.waiting, []
        for count in waiting:
            self.add(count())


class Scores(Watcher):
    """
    The Score events, of the loss functions that are about classes or probabilities.

    In a long run, those of training go on only where an accuracy is ever said. Until then nothing
    is counted: what is put aside of training is let go where none was said to the end.
    """

    makes = ("Score",)
    relies_on = ("EvaluationSkill", "LoggedValues", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[tuple[str, bool], list[_Stretch]] = {}
        self._count = self._backwards = 0
        self._near, self._ignored = NearTargets(), IGNORED
        self._learned: set[str] = set()  # the functions whose losses are learned from
        self._measured = False  # whether an evaluation has a loss of torch
        self._room = _WAITING

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._skill = self.recorder.watcher(EvaluationSkill)
        self._logged = self.recorder.watcher(LoggedValues)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Tell the calls of one backward from those of the next."""
        self._backwards += 1

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Compare the output of a pass that does not learn with the classes it is to name."""
        place, served = f"of {forward.module}", self._skill.targets_of(forward, output)
        for target in served:
            if self._decides():
                self._add_decisions(place, output, target)
            elif not target.is_floating_point():
                self._add(place, "cross_entropy", output, target)
        if served or self._measured or not self.recorder.steps:
            return
        classes = partial(fit_classes, ignored=self._ignored)
        fit = fit_decisions if self._decides() else classes
        near = self._near.find(forward.module, inputs, output, fit)
        if near is not None and self._decides():
            self._add_decisions(place, *near)
        elif near is not None:
            self._add(place, "cross_entropy", *near, self._ignored)

    def finish(self) -> Iterator[Event]:
        """Return what was counted at each place, of training where an accuracy was ever said."""
        for (source, learns), stretches in self._places.items():
            if self._measured and source.startswith("of "):
                continue  # what a loss is given is known for sure
            if learns and not self._logged.says_accuracy:
                continue
            for stretch in stretches:
                stretch.count_waiting()
            yield from (_describe(source, one) for one in stretches if one.numbers)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Count what is right in what a loss function is given."""
        if value.requires_grad:
            self._learned.add(tally.function)
        late = value.requires_grad and self.recorder.steps > DENSE
        if late and not self._logged.says_accuracy:
            return
        ignored = tally.ignored
        self._ignored = ignored if tally.function in CROSS_ENTROPIES else self._ignored
        learns = not (tally.evaluation or self._measures(value))
        self._measured |= not learns
        self._add(tally.source, tally.function, scores, target, ignored, learns=learns)

    def _measures(self, value: torch.Tensor) -> bool:
        """Say whether a loss without a graph is of a pass that has none, whatever the mode now."""
        recent = self.recorder.recent
        return not value.requires_grad and bool(recent) and not recent[-1].gradients

    def _decides(self) -> bool:
        """Say whether all that is learned from are losses of zeros and ones, of one kind."""
        return len(self._learned) == 1 and self._learned <= {LOGITS, "binary_cross_entropy"}

    def _add_decisions(self, place: str, output: Any, target: torch.Tensor) -> None:
        """Add what a model says of zeros and ones: logits, but where all are probabilities."""
        waits = not target.is_cpu and not self._logged.says_accuracy  # for an accelerator
        pair = None if waits else fit_decisions(output, target, known=False)
        if pair is None:
            return
        scores, wanted = pair
        are_logits = self._learned == {LOGITS} and bool((scores < 0).any() | (scores > 1).any())
        function = LOGITS if are_logits else "binary_cross_entropy"
        self._add(place, function, scores, wanted)

    def _add(
        self,
        place: str,
        function: str,
        scores: torch.Tensor,
        target: Any,
        ignored: int = IGNORED,
        *,
        learns: bool = False,
    ) -> None:
        """Add the counts of one call to the stretch that it belongs to."""
        if not _are_comparable(function, scores, target):
            return
        stretch = self._stretch(place, scores, function, learns=learns)
        if stretch is None:
            return
        count = _put_aside(function, scores.detach(), target, ignored, learns=learns)
        self._room -= target.numel()
        if self._logged.says_accuracy or self._room < 0 or not scores.is_cpu:
            stretch.count_waiting()
            stretch.add(count())
        else:
            stretch.waiting.append(count)
        recent = self.recorder.recent
        stretch.sole &= bool(recent) and target.numel() == recent[-1].samples
        stretch.clock = self.recorder.tick()

    def _stretch(
        self, place: str, scores: torch.Tensor, function: str, *, learns: bool
    ) -> _Stretch | None:
        """Return the stretch of a place that goes on, or a new one; None if there are too many."""
        if (place, learns) not in self._places and len(self._places) >= _PLACES:
            return None
        own = self._places.setdefault((place, learns), [])
        key = self.recorder.steps, self._backwards
        classes = scores.shape[1] if function in CROSS_ENTROPIES else 2
        # Heads of one model, which are evaluated one after the other, may have other classes.
        if not own or (own[-1].step, own[-1].turn, own[-1].classes) != (*key, classes):
            if self._count >= _STRETCHES:
                return None
            self._count += 1
            own.append(_Stretch(*key, classes, not learns))
        return own[-1]


def _are_comparable(function: str, scores: Any, target: Any) -> bool:
    """Say whether these are scores of classes, or probabilities, and what they should be."""
    if not isinstance(target, torch.Tensor) or not isinstance(scores, torch.Tensor):
        return False
    if not scores.is_floating_point() or not 0 < scores.numel() <= _LARGEST or not target.dim():
        return False
    if not has_memory(scores) or not has_memory(target):  # as inside of a transformation
        return False
    if function not in CROSS_ENTROPIES:
        binary = function in (LOGITS, "binary_cross_entropy")
        return binary and scores.shape == target.shape and not target.requires_grad
    integral = not (target.is_floating_point() or target.is_complex())
    wide = scores.dim() > 1 and scores.shape[1] > 1
    return integral and wide and target.shape == scores.shape[:1] + scores.shape[2:]


def _put_aside(
    function: str, scores: torch.Tensor, target: torch.Tensor, ignored: int, *, learns: bool
) -> Callable[[], Counts]:
    """Return what counts a call, made of copies: a training may write to the same place again."""
    if function not in CROSS_ENTROPIES:
        return partial(_count_probabilities, scores.clone(), target.clone(), function == LOGITS)
    shape = scores.shape
    axes = [axis for axis in range(len(shape)) if shape[:axis] + shape[axis + 1 :] == target.shape]
    given = _as_array(scores) if scores.dtype in _NUMPY else scores
    named = {axis: given.argmax(axis) for axis in axes}
    crosses = not learns and shape[1] <= _CROSSED and isinstance(given, np.ndarray)
    count = _count_crossed if crosses else _count_classes
    return partial(count, named, shape[1], target.clone(), ignored)


def _count_crossed(places: Named, most: int, given: torch.Tensor, ignored: int) -> Counts:
    """Return the same as of other classes, and how often each class was named as each."""
    named, target = places[1], _as_array(given).astype(np.int64)  # bytes would wrap around
    inside = (target != ignored) & (target >= 0) & (target < most)
    pairs = (target * most + named)[inside]
    crossed = np.bincount(pairs, minlength=most * most), len(pairs)
    return _count_classes(places, most, given, ignored) | {"crossed": crossed}


def _count_classes(places: Named, most: int, given: torch.Tensor, ignored: int) -> Counts:
    """Return what is right by each way of counting, of the highest of so many scores."""
    by_axis = {axis: _as_array(named) for axis, named in places.items()}
    named, every, target = by_axis.pop(1), given.numel(), _as_array(given)
    counted = target != ignored
    if target.ndim == 1 and target is not given and counted.all():
        with suppress(ValueError):  # a target that is no class
            return _count_all(by_axis, named, target, most)
    hits = (named == target) & counted
    of = counted.sum()
    counts: Counts = {"right": (hits.sum(), of), "all": (hits.sum(), every)}
    counts["padded"] = (named == target).sum(), every
    counts["filled"] = hits.sum() + (every - of), every
    for index, name in enumerate(("first", "second")):
        counts[name] = (target == index).sum(), of
    if target.ndim > 1:
        whole = (hits | ~counted).reshape(len(hits), -1).all(1)
        counts["whole"] = whole.sum(), len(whole)
    for other in by_axis.values():
        counts["axis"] = ((other == target) & counted).sum(), of
    if target.ndim == 1:
        tallies = [_tally(classes, counted, most) for classes in (named, target)]
        counts["pairs"] = (tallies[0] * tallies[1]).sum(), every * every
        counts["commonest"] = tallies[1].max(), of
    return counts


def _count_all(others: Named, named: Any, target: Any, most: int) -> Counts:
    """Return the same of one class for each sample, where none is ignored, in few operations."""
    of = len(target)
    came, said = np.bincount(target, minlength=most), np.bincount(named, minlength=most)
    hits = np.count_nonzero(named == target)
    counts: Counts = {
        "right": (hits, of),
        "all": (hits, of),
        "padded": (hits, of),
        "filled": (hits, of),
    }
    counts |= {"first": (int(came[0]), of), "second": (int(came[1]), of)}
    for other in others.values():
        counts["axis"] = np.count_nonzero(other == target), of
    counts["pairs"] = float(came @ said), float(of) * of
    counts["commonest"] = int(came.max()), of
    return counts


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the same numbers for NumPy, which is faster with few, where they are on the CPU."""
    return array_of(tensor) if type(tensor) is torch.Tensor and tensor.is_cpu else tensor


def _tally(classes: Any, counted: Any, most: int) -> Any:
    """Return how often each class comes, what is ignored left out."""
    if isinstance(classes, np.ndarray):
        return np.bincount(classes.clip(0, most - 1), weights=counted, minlength=most)
    tally = torch.zeros(most, dtype=torch.double, device=classes.device)
    return tally.scatter_add_(0, classes.clamp(0, most - 1), counted.double())


def _count_probabilities(scores: torch.Tensor, target: torch.Tensor, logits: bool) -> Counts:
    """Return what is right by each way of counting, of probabilities or their logits."""
    positive, wanted = scores > (0 if logits else 0.5), target > 0.5
    hits, of = _as_array(positive == wanted), target.numel()
    ones, said = _as_array(wanted).sum(), _as_array(positive).sum()
    counts: Counts = {
        "right": (hits.sum(), of),
        "first": (of - ones, of),
        "second": (ones, of),
        "hard": (_as_array((target == 0) | (target == 1)).sum(), of),
    }
    if target.dim() > 1 and target.numel() > len(target):
        counts["whole"] = hits.reshape(len(hits), -1).all(1).sum(), len(hits)
    else:
        counts["pairs"] = ones * said + (of - ones) * (of - said), of * of
        counts["commonest"] = of / 2 + abs(ones - of / 2), of
    if logits:
        counts["half"] = _as_array((scores > 0.5) == wanted).sum(), of
        counts["rounded"] = _as_array(scores.round() == target).sum(), of
    return counts


def _describe(source: str, stretch: _Stretch) -> Score:
    """Return the event of a stretch; none of its counts where targets are between 0 and 1."""
    crossed = stretch.numbers.pop("crossed", None)
    numbers = {name: tuple(map(float, each)) for name, each in stretch.numbers.items()}
    hard = numbers.pop("hard", (0.0, 0.0))
    commonest = numbers.pop("commonest", (float("nan"),))
    sharp = hard[0] == hard[1]
    if stretch.evaluation and stretch.latest is not None and stretch.calls >= _SEVERAL:
        right, of = map(float, stretch.latest)
        numbers["final"] = right, of, stretch.calls * right / max(1.0, of)
    return Score(
        step=stretch.step,
        source=source,
        clock=stretch.clock,
        calls=stretch.calls,
        evaluation=stretch.evaluation,
        classes=stretch.classes,
        sole=stretch.sole,
        ways=tuple((n, r, of, total / stretch.calls) for n, (r, of, total) in numbers.items())
        if sharp
        else (),
        commonest=commonest[0],
        renamed=float("nan") if crossed is None else _rename(crossed[0], stretch.classes),
    )


def _rename(crossed: Any, classes: int) -> float:
    """Return how many were right if each class were called what it is mostly named as."""
    table = crossed.reshape(classes, classes)[crossed.reshape(classes, classes).sum(1) > 0]
    names = table.argmax(1)
    apart = len(set(names.tolist())) == len(names) > 1
    return float(table.max(1).sum()) if apart else float("nan")
