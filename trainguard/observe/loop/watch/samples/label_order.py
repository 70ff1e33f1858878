"""Watches the classes that loss functions get: whether they come sorted, epoch after epoch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches

_LOSSES = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "multi_margin_loss",
    "nll_loss",
}
_CALLS = 4096  # calls from one line that are looked at
_STEPS = 4  # of an epoch, at least: passes over one class in turns are no order
_ROWS = 32  # of an epoch, at least: fewer labels are sorted by chance now and then
_PLACES = 1024  # in a pass, that are looked at
_AGAIN = 8  # batches that come again, at the same places of other passes
_WAITING = 2**16  # labels on an accelerator that wait for a step that is looked at more closely


@dataclass(slots=True)
class _SortedRuns:
    """
    The labels from one line so far, as long as they only rise and begin again.

    runs: each stretch that rises: the steps that were made of it, its rows, its first label and
    its last. step: the one that the latest batch belongs to.
    """

    runs: list[tuple[int, int, float, float]] = field(default_factory=list)
    calls: int = 0
    sorted: bool = True
    step: int = -1

    def add(self, labels: list[float], step: int) -> None:
        """Take in the labels of a batch."""
        self.calls += 1
        is_new, self.step = step != self.step, step
        self.sorted = self.calls < _CALLS and labels == sorted(labels)
        if self.runs and labels[0] >= self.runs[-1][3]:
            steps, rows, first, _ = self.runs[-1]
            self.runs[-1] = (steps + is_new, rows + len(labels), first, labels[-1])
        else:
            self.runs.append((1, len(labels), labels[0], labels[-1]))

    @property
    def is_sorted(self) -> bool:
        """Whether every epoch had the same rising labels; the last one may have been cut short."""
        steps, rows, first, last = self.runs[0]
        whole = self.runs[:-1] and all(run == self.runs[0] for run in self.runs[:-1])
        long = steps >= _STEPS and rows >= max(_ROWS, 2 * steps) and first < last
        return bool(whole and long and self.runs[-1][0] <= steps)


@dataclass(slots=True)
class _PlacedLabels:
    """
    The labels of one line by their places in the passes through a loader, of which some are seen.

    same, others: how many came again in another pass with the same labels, and with others.
    turn, begun: the latest pass, and the step at which it was seen first. made: the most steps that
    were made in a pass; none in one of an evaluation whose losses have a graph.
    """

    places: dict[int, list[float]] = field(default_factory=dict)
    turns: set[int] = field(default_factory=set)
    turn: int = -1
    begun: int = 0
    made: int = 0
    same: int = 0
    others: int = 0

    def add(self, labels: list[float], turn: int, place: int, step: int) -> None:
        """Take in a batch of a pass."""
        if turn != self.turn:
            self.turn, self.begun = turn, step
        self.made = max(self.made, step - self.begun + 1)
        if len(self.turns) < _CALLS:
            self.turns.add(turn)
        if place not in self.places and len(self.places) < _PLACES:
            self.places[place] = labels
        else:  # of another pass
            self.same += labels == self.places.get(place)
            self.others += labels != self.places.get(place)
            if self.others:
                self.places.clear()

    def find_run(self) -> tuple[int, int] | None:
        """Return the rows and batches of the stretches that rise, where a pass has no others."""
        few = self.same < _AGAIN or self.made < _STEPS
        if self.others or few or 2 * len(self.places) <= max(self.places):
            return None
        runs: list[tuple[int, list[float]]] = []
        for place, labels in sorted(self.places.items()):
            if labels != sorted(labels):
                return None
            if not runs or labels[0] < runs[-1][1][-1]:
                runs.append((place, [*labels]))
            else:
                runs[-1][1].extend(labels)
        ends = [*(begin for begin, _ in runs[1:]), max(self.places) + 1]
        sizes = [end - begin for (begin, _), end in zip(runs, ends, strict=True)]
        each = max(len(labels) for _, labels in runs)
        alike = len({(labels[0], labels[-1]) for _, labels in runs}) == 1
        long = min(sizes) >= _STEPS and each >= max(_ROWS, 2 * min(sizes))
        return (each, min(sizes)) if alike and long and runs[0][1][0] < runs[0][1][-1] else None


class LabelOrder(Watcher):
    """The Probe event "sorted": lines whose labels rise through each epoch."""

    makes = ("Probe:sorted",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._lines: dict[str, _SortedRuns] = {}
        self._placed: dict[str, _PlacedLabels] = {}
        self._waiting: list[tuple[_SortedRuns, torch.Tensor, int]] = []

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def after_step(self, window: Window) -> Columns:
        """Look at the labels that wait on an accelerator, where a step is looked at closely."""
        if self._waiting:
            many = sum(labels.numel() for _, labels, _ in self._waiting) > _WAITING
            if window.is_surveyed or many:
                self._settle()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what came sorted."""
        self._settle()
        for source, line in self._lines.items():
            self.looked |= {"sorted"} if len(line.runs) > 1 or not line.sorted else set()
            if line.runs and line.sorted and line.is_sorted:
                steps, rows, _, _ = line.runs[0]
                yield Probe(
                    probe="sorted",
                    measured=float(len(line.runs)),
                    reference=float(steps),
                    label=f"{rows} labels in {steps} steps",
                    source=source,
                )
            elif source in self._placed and (run := self._placed[source].find_run()) is not None:
                passes, label = (
                    len(self._placed[source].turns),
                    f"{run[0]} labels in {run[1]} steps",
                )
                yield make_probe("sorted", passes, run[1], label=label, source=source)

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Look at the labels of a loss that is learned from, until some are not sorted."""
        if tally.function not in _LOSSES or not value.requires_grad:
            return
        line = self._lines.setdefault(tally.source, _SortedRuns())
        self._place(tally.source, target)
        if line.sorted and isinstance(target, torch.Tensor):
            labels = target.detach().reshape(-1)
            if target.requires_grad or not target.dim() or not len(target) == len(labels) > 0:
                line.sorted = False
            elif target.is_cpu:
                line.add(labels.tolist(), self.recorder.steps)
            else:
                self._waiting.append((line, labels.clone(), self.recorder.steps))

    def _place(self, source: str, target: Any) -> None:
        """Take in the labels by where in a pass they come, as far as a loader has served them."""
        served = self._batches.recent[-1] if self._batches.recent else None
        placed = self._placed.setdefault(source, _PlacedLabels())
        if served is None or placed.others or not isinstance(target, torch.Tensor):
            return
        place = getattr(served.iterator(), "_num_yielded", 0)
        able = target.is_cpu and target.dim() == 1 and len(target) and not target.requires_grad
        if place and able:
            placed.add(target.tolist(), served.turn, place - 1, self.recorder.steps)

    def _settle(self) -> None:
        """Ask for the labels that have waited on an accelerator."""
        waiting, self._waiting = self._waiting, []
        batches = [(line, step) for line, _, step in waiting]
        labels = [labels for _, labels, _ in waiting]
        self.recorder.reads.ask(self, labels, partial(_take_in, batches))


def _take_in(batches: list[tuple[_SortedRuns, int]], here: list[torch.Tensor]) -> None:
    """Take in the labels of batches."""
    for (line, step), labels in zip(batches, here, strict=True):
        if line.sorted:
            line.add(labels.tolist(), step)
