"""
Watches what a loss function would return for a prediction that knows no input.

That prediction is the average of the targets seen so far: their mean, or the logarithm of how often
each class came. It is told the next targets before it learns from them, as the model is, and the
two losses are compared on the very same calls.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.observe.loop.alike_samples import AlikeSamples, Number, mean_of
from trainguard.observe.loop.held_out_regression import MOST, Examples
from trainguard.observe.loop.reads import Take
from trainguard.observe.loop.thinning import distance_of
from trainguard.observe.loop.watch.evaluations.evaluation_metrics import EvaluationMetrics
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.class_counts import (
    are_classes,
    class_weights,
    count_classes,
    lose_rates,
)
from trainguard.observe.loop.watch.losses.loss_calls import (
    CROSS_ENTROPIES,
    LOGITS,
    LossCalls,
)
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches

_NUMBERS = {LOGITS, "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
# As they are: what a script puts in their place is not ours to call.
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(functional, name) for name in (*_NUMBERS, *CROSS_ENTROPIES)
}
_SYMMETRIC = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
_Kind = tuple[bool, tuple[int, ...]]  # of targets that are numbers, what an output has for each
_CHUNKS = 64  # stretches of the run whose losses are told apart
_LARGEST = 2**22  # elements of a target
_EPSILON = 1e-6
_HALF = 0.5  # of a time that each class is taken to have come before the first call
_PLACES = 16
_PENDING = 32  # calls with classes whose constant losses are computed together
_COUNTS = 2**18  # numbers in what waits for that: a vocabulary waits for fewer calls
_BEATEN = 0.98  # of the constant's loss, as its judge has it
_LITTLE = 0.05  # of the variance of targets: what a regression on 256 examples explains by chance
_NODES = 2**12  # of a graph that are looked at: such a model is no constant


@dataclass(slots=True)
class _Place:
    """
    The losses of the model and of the constant prediction in the calls of one place.

    only: backward passes whose loss was a multiple of one of these calls, and of nothing else.
    chunks: (loss, loss of the constant, calls) of stretches of the run, all equally long.
    average: of the targets so far, for classes how often each came; weight: of how many it is.
    pending: the losses of the latest calls with classes, and how often each class came in them.
    sizes: of the parameters that there were at the first call, in all their dimensions.
    """

    tally: LossCalls
    only: int = 0
    chunks: list[tuple[Number, Number, int]] = field(default_factory=list)
    stride: int = 1
    average: torch.Tensor | None = None
    weight: float = 0.0
    sizes: set[int] = field(default_factory=set)
    kind: _Kind = (False, ())
    failed: bool = False
    samples: AlikeSamples = field(default_factory=AlikeSamples)
    examples: Examples = field(default_factory=Examples)
    pending: list[tuple[Number, torch.Tensor, int]] = field(default_factory=list)

    def add(self, loss: Number, constant: Number, times: int = 1) -> None:
        """Add the two losses of a call as often as there were others that nobody saw."""
        for _ in range(times):
            self._add(loss, constant)

    def _add(self, loss: Number, constant: Number) -> None:
        """Add the two losses of one call; in a long run the stretches become longer."""
        if self.chunks and self.chunks[-1][2] < self.stride:
            before = self.chunks.pop()
            self.chunks.append((before[0] + loss, before[1] + constant, before[2] + 1))
        else:
            self.chunks.append((loss, constant, 1))
        if len(self.chunks) >= _CHUNKS and self.chunks[-1][2] == self.stride:
            pairs = zip(self.chunks[::2], self.chunks[1::2], strict=True)
            self.chunks = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
            self.stride *= 2

    def add_classes(self, value: Number, came: torch.Tensor, times: int) -> None:
        """Add a call whose targets are classes, by how often each came; the first one teaches."""
        if self.average is None:
            self.average = came + _HALF
            return
        self.pending.append((value, came, times))
        if len(self.pending) >= min(_PENDING, _COUNTS // len(came) + 1):
            self.settle()

    def settle(self) -> None:
        """Compute what the frequencies of classes before each waiting call lose in that call."""
        pending, self.pending = self.pending, []
        if not pending or self.average is None:
            return
        came = torch.stack([came for _, came, _ in pending]).to(self.average)
        before = self.average + came.cumsum(0) - came
        self.average = self.average + came.sum(0)
        constants = lose_rates(self.tally, before / before.sum(1, keepdim=True), came)
        losses = [value for value, _, _ in pending]
        if not constants.is_cpu:  # there it is not known before whether a call had any classes
            had = came.sum(1) > 0
            constants = constants.where(had, 0.0)
            losses = [*torch.stack(losses).where(had, 0.0)]
        each = constants.tolist() if constants.is_cpu else constants.unbind()
        for loss, constant, (_, _, times) in zip(losses, each, pending, strict=True):
            self.add(loss, constant, times)

    def counts(self) -> list[float]:
        """Return how often each class came, where parameters have such a size."""
        if (
            self.average is None
            or self.average.dim() != 1
            or self.tally.function not in CROSS_ENTROPIES
        ):
            return []  # the average is of numbers
        return self.average.tolist() if len(self.average) in self.sizes else []


class ConstantPredictions(Watcher):
    """The BaselineFit events."""

    makes = ("BaselineFit",)
    relies_on = ("Batches", "EvaluationMetrics", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[int, _Place] = {}
        self._backwards = 0
        self._given: Callable[[], torch.Tensor | None] = lambda: None  # to the latest evaluation
        self._evaluated: dict[_Kind, Examples] = {}  # pairs of evaluations

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self._losses = self.recorder.watcher(LossFunctions)
        self._losses.listeners.append(self._on_loss)
        self.recorder.watcher(EvaluationMetrics).listeners.append(self._on_pair)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what a pass of an evaluation is given."""
        given = self.recorder.given[:1]
        self._given = weakref.ref(given[0]) if given else lambda: None

    def before_backward(self, loss: torch.Tensor) -> None:
        """Count the passes whose loss comes from one place alone."""
        if self.recorder.unheard:
            return
        self._backwards += 1
        only = self._losses.only
        place = self._places.get(id(only)) if only is not None else None
        if place is not None:
            place.only += 1

    def lags(self) -> bool:
        """Say whether the loss at some place was no lower than the constant's of late."""
        latest = [each.chunks[-1] for each in self._places.values() if each.chunks]
        return any(float(loss) >= _BEATEN * float(constant) for loss, constant, _ in latest)

    def finish(self) -> Iterator[Event]:
        """Return what was added up of each place."""
        for place in self._places.values():
            self._attempt(place, place.settle)
            if place.failed or not place.chunks:
                continue
            weights, counts = class_weights(place.tally, place.average, place.weight)
            came = [number for number, times in enumerate(place.counts()) if times > _HALF]
            yield BaselineFit(
                function=place.tally.function,
                source=place.tally.source,
                calls=sum(calls for _, _, calls in place.chunks),
                only=place.only / max(1, self._backwards),
                losses=tuple(float(loss) / calls for loss, _, calls in place.chunks),
                constants=tuple(float(loss) / calls for _, loss, calls in place.chunks),
                **place.samples.describe(),
                **self._describe(place),
                weights=weights,
                counts=counts,
                classes=len(place.counts()),
                single=came[0] if len(came) == 1 else -1,
            )

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Compare a loss with that of the constant prediction, which then learns the target."""
        if tally.function not in _NUMBERS and tally.function not in CROSS_ENTROPIES:
            return
        if not value.requires_grad:
            self._remember(self._given(), scores, target)
            return
        place = self._places.get(id(tally))
        if place is None:
            if len(self._places) >= _PLACES:
                return
            sizes = {size for p in self.recorder.names.parameters() for size in p.shape}
            failed = not _looks_at_inputs(value)
            place = self._places[id(tally)] = _Place(tally, sizes=sizes, failed=failed)
            place.examples.ask = partial(self._ask, place)
            place.kind = _kind_of(scores, target)
        self._attempt(place, lambda: self._look(place, scores, target, value))

    @shielded
    def _on_pair(self, _: str, scores: torch.Tensor, target: torch.Tensor) -> None:
        """Remember pairs of an evaluation whose loss is not known, as where it has an accuracy."""
        self._remember(next(iter(self.recorder.given), None), scores, target)

    def _remember(self, given: torch.Tensor | None, scores: torch.Tensor, target: Any) -> None:
        """Remember pairs of an evaluation, on the host."""
        known = isinstance(target, torch.Tensor) and has_rows(scores)
        if given is None or not given.is_cpu or not known:
            return
        kind = _kind_of(scores, target)
        if kind in self._evaluated or len(self._evaluated) < _PLACES:
            with suppress(Exception):  # whatever cannot be compared is left alone
                self._evaluated.setdefault(kind, Examples(MOST)).add(given, target)

    def _describe(self, place: _Place) -> dict[str, Any]:
        """Return what examples tell, and those of evaluations where they tell little."""
        told = place.examples.describe()
        other = self._evaluated.get(place.kind)
        if other is not None and told["learnable"] < _LITTLE:
            told["evaluated"] = other.explain()
            told["farther"] = place.examples.farther_than(other)
        return told

    def _ask(self, place: _Place, tensors: Sequence[torch.Tensor], take: Take) -> None:
        """Have a place told of tensors, as long as nothing has failed there."""
        self.recorder.reads.ask(self, tensors, lambda h: self._attempt(place, lambda: take(h)))

    def _attempt(self, place: _Place, look: Callable[[], None]) -> None:
        """Look at a place, as long as nothing has failed there."""
        if not place.failed:
            try:
                look()
            except Exception:  # noqa: BLE001 whatever cannot be compared is left alone
                place.failed = True

    def _look(
        self, place: _Place, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Add the losses of one call, and let the constant prediction learn from it."""
        tally = place.tally
        if target.requires_grad and not scores.requires_grad and tally.function in _SYMMETRIC:
            scores, target = target, scores
        able = target.numel() <= _LARGEST and tally.options is not None
        if target.requires_grad or not able:
            place.failed = True
            return
        given = self._batches.given() if self._batches.given is not None else None
        if given is not None and not given.is_meta:  # there it would have no numbers
            place.examples.add(given, target)
            unit = tally.function in _SYMMETRIC
            beside = self._batches.beside
            place.samples.add(
                distance_of(tally.calls), given, scores.detach(), target, unit, beside
            )
        if are_classes(tally, target):
            came = count_classes(tally, scores.shape[1 if scores.dim() > 1 else 0], target)
            if came is not None:
                place.add_classes(mean_of(value), came, self.recorder.times)
            return
        constant = _compare_numbers(place, target.detach())
        if constant is not None:
            place.add(mean_of(value), mean_of(constant), self.recorder.times)


def _kind_of(scores: torch.Tensor, target: torch.Tensor) -> _Kind:
    """Return what pairs of a training and of an evaluation have in common."""
    return target.is_floating_point(), tuple(scores.shape[1:])


def _looks_at_inputs(loss: torch.Tensor) -> bool:
    """Say whether a matrix is learned, or a graph too large to tell: without one it is constant."""
    nodes = list(autograd_graph.below(loss.grad_fn, _NODES))
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    return len(nodes) >= _NODES or any(leaf.dim() > 1 for leaf in leaves)


def _compare_numbers(place: _Place, target: torch.Tensor) -> torch.Tensor | None:
    """Return the loss of the average target so far, then add these targets to the average."""
    function = place.tally.function
    flat = target.float()
    if function in CROSS_ENTROPIES:
        own = flat.movedim(1, -1).reshape(-1, flat.shape[1]).mean(0)
    elif target.dim() == 2:
        own = flat.mean(0)
    else:
        own = flat.mean()
    before = place.average
    rows = float(len(target)) if target.dim() else 1.0
    place.weight += rows
    if before is None:
        place.average = own.clone()
        return None
    place.average = before + (own - before) * (rows / place.weight)
    options = dict(place.tally.options or {})
    if function in CROSS_ENTROPIES:
        shape = (1, -1) + (1,) * (target.dim() - 2)
        guess = before.clamp_min(_EPSILON).log().reshape(shape).expand_as(target)
    elif function == LOGITS:
        guess = before.clamp(_EPSILON, 1 - _EPSILON).logit().expand_as(target)
    else:
        guess = before.expand_as(target)
    return _FUNCTIONS[function](guess.to(target.dtype), target, **options)
