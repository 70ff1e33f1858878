"""Watches models that are evaluated again as they were before: whether that was their best."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.evaluations.evaluation_skill import EvaluationSkill
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import fingerprint
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.patches import Patches

_LARGEST = 2**14  # elements of the parameters by which a state is known again
_PARAMETERS = 8
_STATES = 512  # that are remembered
_MODULES, _PASSES = 64, 64
_SCORES = 2**18  # of a batch that is measured
_FEWEST = 4  # evaluations: of fewer one is the worst by chance
_WORSE = 1.1  # times the least error: below that evaluations are alike

# Both errors of predictions, and of how many: absolute and squared ones, or of classes the share
# that is named wrongly and the likelihood.
_Errors = tuple[float, float, int]


@dataclass(slots=True)
class _EvaluatedState:
    """A state of a model, and its errors in each pass through a set of samples."""

    step: int
    module: str
    source: str
    passes: list[_Errors] = field(default_factory=list)
    turn: int = -1  # of the loader, in the latest pass

    def add(self, errors: _Errors, turn: int) -> None:
        """Add a batch: of the same pass, where a loader serves both."""
        if self.passes and turn == self.turn >= 0:
            one = self.passes.pop()
            errors = one[0] + errors[0], one[1] + errors[1], one[2] + errors[2]
        if len(self.passes) < _PASSES:
            self.passes.append(errors)
        self.turn = turn

    def is_worse_than(self, other: "_EvaluatedState", times: float = 1.0) -> bool:
        """Say whether all errors are so many times larger, over as many samples."""
        pairs = list(zip(self.passes, other.passes, strict=True))
        return all(a[0] > times * b[0] and a[1] > times * b[1] for a, b in pairs)


class RestoredStates(Watcher):
    """
    The Probe event "worst state": a model at the end as it was at its worst evaluation.

    measured: its mean error in that one; reference: the least mean error of others on the same
    samples; step: which state it is of.
    """

    makes = ("Probe:worst state",)
    relies_on = ("Batches", "EvaluationSkill", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._states: dict[tuple[int, int], _EvaluatedState] = {}  # by step, and by the state
        self._latest: dict[int, tuple[Any, int]] = {}  # of modules, what was seen and the state
        self._open: _EvaluatedState | None = None  # that the latest pass belongs to, until its loss

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self._skill = self.recorder.watcher(EvaluationSkill)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See in which state a model is evaluated, and how far it is from what was served."""
        self._open = None
        # With more, as of rollouts, the last one would not be known.
        state = self._find_state(module) if len(self._states) < _STATES else 0
        if not state:
            return
        key = self.recorder.steps, state
        own = self._states.get(key)
        if own is None:
            own = self._states[key] = _EvaluatedState(key[0], forward.module, forward.source)
        targets = self._skill.targets_of(forward, output)[:1]
        if targets:
            self._add(own, output, targets[0])
        else:
            self._open = own

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Measure what no loader has served, and a loss function is given."""
        own, self._open = self._open, None
        if own is not None and tally.evaluation and isinstance(target, torch.Tensor):
            self._add(own, scores, target)

    def _add(self, own: _EvaluatedState, scores: Any, target: torch.Tensor) -> None:
        """Add the errors of a batch."""
        errors = _measure(scores, target)
        if errors is not None:
            served = self._batches.recent
            own.add(errors, served[-1].turn if served else -1)

    def _find_state(self, module: nn.Module) -> int:
        """Return a number for the values of some parameters that learn; 0 where there are none."""
        small = (p for p in module.parameters() if p.requires_grad and p.numel() <= _LARGEST)
        some = list(islice((p for p in small if p.is_cpu and has_memory(p)), _PARAMETERS))
        seen = [(id(p), p._version, p.data_ptr()) for p in some]  # noqa: SLF001 the only one
        known = self._latest.get(id(module))
        if known is not None and known[0] == seen:
            return known[1]
        state = fingerprint(some) if some else 0
        if len(self._latest) >= _MODULES:
            self._latest.clear()
        self._latest[id(module)] = seen, state
        return state

    def finish(self) -> Iterable[Event]:
        """Return the model at the end, where it is as it was at its worst."""
        if len(self._states) >= _STATES:
            return
        first = {state: each for (_, state), each in reversed(self._states.items()) if each.step}
        last = max((step for step, _ in self._states), default=0)
        again = [state for step, state in self._states if step == last and state in first]
        again = [state for state in again if first[state].step < last]
        # A training that goes on afterwards has not chosen yet, and several are a comparison.
        if last == self.recorder.steps and len(again) == 1:
            own = first.pop(again[0])
            yield from self._judge(own, [e for e in first.values() if e.module == own.module])

    def _judge(self, own: _EvaluatedState, every: list[_EvaluatedState]) -> Iterable[Event]:
        """Yield a state that is the worst of those that were evaluated on the same samples."""
        sizes = [count for *_, count in own.passes]
        others = [other for other in every if [count for *_, count in other.passes] == sizes]
        # The last state of a model may be its worst, where another one is trained after it.
        gone_back = any(other.step > own.step for other in others)
        if not sizes or len(others) < _FEWEST - 1 or not gone_back:
            return
        self.looked.add("worst state")
        best = min(others, key=lambda other: other.passes[0][0])
        if all(own.is_worse_than(other) for other in others) and own.is_worse_than(best, _WORSE):
            (error, _, count), (least, _, _) = own.passes[0], best.passes[0]
            yield make_probe(
                "worst state",
                error / count,
                least / count,
                step=own.step,
                label=f"{own.module}, of {len(others) + 1}",
                source=own.source,
            )


def _measure(scores: Any, target: torch.Tensor) -> _Errors | None:
    """Return two sums of errors of a batch, and of how many samples; None where none are known."""
    able = all(
        type(each) is torch.Tensor
        and each.is_cpu
        and each.layout == torch.strided
        and not (each.is_nested or each.is_complex())
        and each.dim()
        for each in (scores, target)
    )
    if not able or not 0 < scores.numel() <= _SCORES or not scores.is_floating_point():
        return None
    with torch.no_grad():
        told = scores.detach().double()
        if scores.shape[:-1] == target.shape and scores.shape[-1] > 1:
            return _measure_classes(told.flatten(0, -2), target.flatten())
        if told.numel() != target.numel() or told.shape[:1] != target.shape[:1]:
            return None
        wanted = target.reshape(told.shape).double()
        if bool(((wanted == 0) | (wanted == 1)).all()):
            return _measure_bits(told.flatten(), wanted.flatten())
        off = (told - wanted).abs()
        return float(off.sum()), float(off.square().sum()), off.numel()


def _measure_classes(told: torch.Tensor, wanted: torch.Tensor) -> _Errors | None:
    """Return how many classes are named wrongly, and the loss of those that are known."""
    if wanted.is_floating_point() or wanted.dtype is torch.bool:
        return None
    known = (wanted >= 0) & (wanted < told.shape[1])
    told, wanted = told[known], wanted[known].long()
    if not len(wanted):
        return None
    likely = told.log_softmax(1).gather(1, wanted[:, None])
    return float((told.argmax(1) != wanted).sum()), float(-likely.sum()), len(wanted)


def _measure_bits(told: torch.Tensor, wanted: torch.Tensor) -> _Errors:
    """Return how many bits are named wrongly, and how far: by logits, or by probabilities."""
    middle = 0.5 if bool(((told >= 0) & (told <= 1)).all()) else 0.0
    wrong = float(((told > middle) != wanted.bool()).sum())
    sign = 1 - 2 * wanted
    off = (told - wanted).abs() if middle else torch.logaddexp(sign * told, torch.zeros_like(told))
    return wrong, float(off.sum()), len(wanted)
