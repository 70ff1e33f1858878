"""Watches averages that stand in the place of their model: whether that is put back after it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.parameters.averaged_copies import AveragedCopies
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.averaged_copies import AveragedCopy
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_MOST = 64  # averages
_NUMBERS = 8  # of the first parameter, by which most changes are seen
_MOVES = 8  # of an average, before it is known to follow after each step or so

Numbers = list[Any]


@dataclass(slots=True)
class _Swaps:
    """
    What became of a model and its average.

    trained, average: a few of their numbers after a step, of which steps had been made by then.
    pairs: of steps in a row that were seen; moves: those between which the average moved, and not
    to where its model was. swapped: whether it is in the place of its model now.
    left, back: evaluations after which the training went on with the average, or with the model.
    """

    trained: Numbers = field(default_factory=list)
    average: Numbers = field(default_factory=list)
    steps: int = -1
    pairs: int = 0
    moves: int = 0
    swapped: bool = False
    left: int = 0
    back: int = 0
    source: str = ""

    @property
    def follows(self) -> bool:
        """Whether it moves after most steps, so that it has its model's numbers by no accident."""
        return self.moves >= _MOVES and 2 * self.moves >= self.pairs

    def see_step(self, copy: AveragedCopy, steps: int) -> None:
        """Take down what a step has made, before the average follows."""
        pair, self.swapped = _numbers_of(copy), False
        if pair is None:
            return
        if steps == self.steps + 1:
            self.pairs += 1
            self.moves += pair[1] not in (self.average, self.trained)
        self.trained, self.average, self.steps = *pair, steps

    def see_evaluation(self, copy: AveragedCopy, steps: int) -> bool:
        """See whether the average is in the place of its model, which a step had left otherwise."""
        pair = _numbers_of(copy)
        same = pair is not None and pair[0] == pair[1]
        stays = pair is not None and steps == self.steps and pair[0] == self.trained
        self.swapped |= same and not stays and all(torch.equal(*p) for p in copy.pairs())
        return self.swapped

    def see_training(self, copy: AveragedCopy) -> None:
        """See with what the training goes on."""
        pair, self.swapped = _numbers_of(copy), False
        if pair is not None:
            self.left += pair[0] == pair[1]
            self.back += pair[0] != pair[1]


class SwappedAverages(Watcher):
    """
    The Probe event "swapped average": evaluations of an average in the place of its model.

    measured: after how many the training went on with the numbers of the average, and not with
    those that the latest step had left; reference: all. Of averages that follow every few steps.
    """

    makes = ("Probe:swapped average",)
    relies_on = ("AveragedCopies",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._known: dict[str, _Swaps] = {}  # by name: the copies are kept by who has found them

    def after_step(self, window: Window) -> Columns:
        """Look at the averages that move."""
        copies = self.recorder.watcher(AveragedCopies)
        moving = {id(copy) for copy, moved in copies.moves() if moved}
        for name, copy, _ in copies.copies() if moving else ():
            if id(copy) in moving and (name in self._known or len(self._known) < _MOST):
                known = self._known.setdefault(name, _Swaps())
                known.see_step(copy, self.recorder.steps + 1)
        return {}

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See what is evaluated."""
        for known, copy in self._pairs():
            if not known.swapped and known.see_evaluation(copy, self.recorder.steps):
                known.source = known.source or caller(4)
                self.recorder.woken = True  # the step that goes on is to be seen

    def before_backward(self, loss: torch.Tensor) -> None:
        """See what is learned with after an evaluation."""
        for known, copy in self._pairs():
            if known.swapped:
                known.see_training(copy)

    def finish(self) -> Iterable[Event]:
        """Return how often a model was not put back."""
        for name, known in self._known.items():
            times = known.left + known.back
            self.looked |= {"swapped average"} if times and known.follows else set()
            if known.left and known.follows:
                yield make_probe(
                    "swapped average", known.left, times, label=name, source=known.source
                )

    def _pairs(self) -> Iterator[tuple[_Swaps, AveragedCopy]]:
        """Yield what is known of the copies that are still there."""
        copies = self.recorder.watcher(AveragedCopies).copies() if self._known else []
        yield from ((self._known[name], copy) for name, copy, _ in copies if name in self._known)


def _numbers_of(copy: AveragedCopy) -> tuple[Numbers, Numbers] | None:
    """Return a few numbers of the first parameter and of its average, on the host."""
    for model, average in copy.entries()[:1]:
        if model.is_cpu and average.is_cpu and has_rows(model) and has_rows(average):
            one, other = (t.detach().reshape(-1)[:_NUMBERS].tolist() for t in (model, average))
            return one, other
    return None
