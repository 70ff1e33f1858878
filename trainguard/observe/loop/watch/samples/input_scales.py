"""Watches what models are shown: evaluations whose inputs are scaled otherwise than in training."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.evaluations.evaluation_skill import EvaluationSkill
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Run, attempt
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_BATCHES = 64  # of training that are measured
_LEAST_BATCHES = 8
_STEPS = 32  # before which a model knows too little to be asked
_FACTOR = 2.0  # between spreads: augmentation and other samples change them by less
_ASIDE = 0.5  # of a spread: how far a mean must be from all of those that were learned from,
_APART = 3.0  # and how many times further than these are from each other
_TRIES = 6  # evaluations, at different steps
_ROWS = 8
_SEVERAL = 2  # evaluations without a loss, at different steps
_LARGEST = 2**22  # elements of an input
_BETTER = 0.7  # of a loss: noise of a batch is less


class _Scale(NamedTuple):
    """The mean and the standard deviation of a batch."""

    mean: float
    spread: float


@dataclass(slots=True)
class _Trained:
    """
    The scales of the batches that a module learned from.

    features: sums of columns and of their squares, of inputs with as many; rows: of these inputs.
    alike: whether any evaluation was given inputs of such a scale.
    unasked: evaluations in another scale of which no loss is known, by their steps.
    """

    scales: list[_Scale] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)
    rows: int = 0
    alike: bool = False
    found: list[Probe] = field(default_factory=list)
    left: int = _TRIES
    unasked: dict[int, Probe] = field(default_factory=dict)

    def differs_from(self, own: _Scale) -> bool:
        """Say whether a scale is none of those that were learned from."""
        spreads = [scale.spread for scale in self.scales]
        means = [scale.mean for scale in self.scales]
        aside = max(min(means) - own.mean, own.mean - max(means))
        moved = aside > max(_ASIDE * max(spreads), _APART * (max(means) - min(means)))
        return moved or own.spread > _FACTOR * max(spreads) or own.spread * _FACTOR < min(spreads)

    def middle(self) -> _Scale:
        """Return the scale of the batches in the middle."""
        count = len(self.scales)
        means = sum(scale.mean for scale in self.scales) / count
        return _Scale(means, sum(scale.spread for scale in self.scales) / count)

    def add(self, given: torch.Tensor) -> None:
        """Take in a batch."""
        self.scales.append(_measure(given))
        wide = given.double()
        if given.dim() == 2 and (not self.features or self.features[0].shape == wide.shape[1:]):
            new = [wide.sum(0), wide.square().sum(0)]
            old = self.features
            self.features = [a + b for a, b in zip(old, new, strict=True)] if old else new
            self.rows += len(given)

    def rescale(self, given: torch.Tensor) -> torch.Tensor:
        """Return an input in the scale of training: each column by itself, where it has such."""
        if given.dim() == 2 and self.features and self.features[0].shape == given.shape[1:]:
            mean = self.features[0] / self.rows
            spread = (self.features[1] / self.rows - mean.square()).clamp_min(0).sqrt()
            own, by = given.double().mean(0), given.double().std(0)
            return ((given - own) / by.clamp_min(1e-12) * spread + mean).to(given.dtype)
        own_scale, scale = _measure(given), self.middle()
        factor = scale.spread / max(own_scale.spread, 1e-12)
        return (given - own_scale.mean) * factor + scale.mean


class InputScales(Watcher):
    """
    The Probe event "scale": evaluations with inputs in another scale than all that were learned.

    The loss of such an evaluation is computed again on a copy, with the scale of the training; the
    label has "-" in its place where none is known.
    """

    makes = ("Probe:scale",)
    relies_on = ("EvaluationSkill", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._trained: dict[str, _Trained] = {}
        self._last: tuple[CopyableCall, weakref.ref[torch.Tensor], str, str] | None = None
        self._served: _LossCall | None = None  # of that evaluation, by what its loader has served
        self._asked = -1  # the step of the evaluation that was asked last

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._skill = self.recorder.watcher(EvaluationSkill)
        if self.recorder.probe:
            self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Measure the scale of an input, and remember an evaluation that is out of it."""
        self._close()
        given = next(iter(self.recorder.given), None)
        if given is None or not self.recorder.probe or not _is_measurable(given):
            return
        known = self._trained.setdefault(forward.module, _Trained())
        if forward.gradients:
            if len(known.scales) < _BATCHES:
                known.add(given.detach())
        elif len(known.scales) >= _LEAST_BATCHES and known.left > 0 and not known.alike:
            known.alike = not known.differs_from(_measure(given))
            made = next(tensors_in(output), None)
            if not known.alike and made is not None and self.recorder.steps >= _STEPS:
                call = CopyableCall.of(forward, module, inputs)
                self._last = call, weakref.ref(made), forward.module, caller(4)
                targets = self._skill.targets_of(forward, output)
                self._served = _guess_loss(made, targets[0]) if targets else None

    def finish(self) -> Iterable[Event]:
        """Return what was found, of modules that were never evaluated in the scale of training."""
        self._close()
        for known in self._trained.values():
            if known.found or known.unasked:
                self.looked.add("scale")
            if known.alike:
                continue
            if known.found:
                yield from known.found[-1:] if _are_better(known.found) else []
            elif len(known.unasked) >= _SEVERAL:
                yield known.unasked[max(known.unasked)]

    def _close(self) -> None:
        """Ask for the loss of the pass before, where none was computed since."""
        last, served, self._last = self._last, self._served, None
        if last is not None and served is not None:
            self._ask(last, served)
        elif last is not None:
            (call, _, name, source), known = last, self._trained[last[2]]
            known.unasked[self.recorder.steps] = self._tell(call, known, name, source, "- -")
            known.left -= 1

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Compute the loss of an evaluation again, with its inputs in the scale of training."""
        last, self._last = self._last, None
        if last is None or value.requires_grad or tally.options is None:
            return
        made = last[1]()
        if made is None or made.numel() != scores.numel():
            return
        if torch.equal(made.detach().reshape(scores.shape), scores):
            self._ask(last, _LossCall(tally.function, tally.options, scores.shape, target))

    def _ask(
        self, last: "tuple[CopyableCall, weakref.ref[torch.Tensor], str, str]", losses: "_LossCall"
    ) -> None:
        """Compute a loss again, with its inputs in the scale of training, once in a step."""
        (call, _, name, source), step = last, self.recorder.steps
        if step == self._asked:
            return
        self._asked = step
        known = self._trained[name]
        known.left -= 1
        seen, _ = self.recorder.faults.look_apart(
            name,
            call.module,
            lambda: attempt(self.recorder, call, lambda run: losses.compare(call, run, known)),
        )
        if seen:
            losses_told = " ".join(f"{number:.3g}" for number in seen)
            known.found.append(self._tell(call, known, name, source, losses_told))

    def _tell(
        self, call: CopyableCall, known: _Trained, name: str, source: str, losses: str
    ) -> Probe:
        """Return the event of an evaluation; losses: as it was, and in the scale of training."""
        own, middle = _measure(next(t for t in tensors_in(call.inputs) if t.dim())), known.middle()
        return Probe(
            probe="scale",
            measured=own.spread,
            reference=middle.spread,
            step=self.recorder.steps,
            label=f"{name} {own.mean:.3g} {middle.mean:.3g} {losses}",
            source=source,
        )


class _LossCall(NamedTuple):
    """How the loss of an evaluation is computed from what a module returns."""

    function: str
    options: dict[str, Any]
    shape: torch.Size
    target: Any

    def compare(self, call: CopyableCall, run: Run, known: _Trained) -> tuple[float, float]:
        """Return the loss as it is, and with the first input in the scale of training."""
        given = next(t for t in tensors_in(call.inputs) if t.dim())
        other = known.rescale(given.detach())
        inputs = tuple(other if entry is given else entry for entry in call.inputs)
        return self._of(run(call.inputs)), self._of(run(inputs))

    def _of(self, made: list[torch.Tensor]) -> float:
        """Return the mean loss of an output."""
        function = getattr(nn.functional, self.function)
        scores = made[0].reshape(self.shape)
        return float(function(scores, self.target, **self.options).mean())


def _guess_loss(scores: torch.Tensor, target: torch.Tensor) -> _LossCall | None:
    """Return the loss that an output and its target may have: of classes, or of numbers."""
    if scores.dim() == 2 and target.shape == scores.shape[:1] and not target.is_floating_point():
        inside = bool(((target >= 0) & (target < scores.shape[1])).all())
        return _LossCall("cross_entropy", {}, scores.shape, target) if inside else None
    if scores.numel() == target.numel() and target.is_floating_point():
        return _LossCall("mse_loss", {}, target.shape, target)
    return None


def _is_measurable(given: torch.Tensor) -> bool:
    """Say whether an input has numbers that can be measured, in several rows."""
    plain = given.is_cpu and has_rows(given) and given.grad_fn is None
    able = plain and given.is_floating_point() and 1 < given.dim() < 6
    return able and len(given) >= _ROWS and given.numel() <= _LARGEST


def _measure(given: torch.Tensor) -> _Scale:
    """Return the scale of a batch."""
    with torch.no_grad():
        spread, mean = torch.std_mean(given.detach().float())
    return _Scale(float(mean), float(spread))


def _are_better(found: list[Probe]) -> bool:
    """Say whether the latest evaluations would have been much better in the scale of training."""
    pairs = [tuple(map(float, probe.label.split(" ")[-2:])) for probe in found[-2:]]
    return len(pairs) == 2 and all(after < _BETTER * before for before, after in pairs)
