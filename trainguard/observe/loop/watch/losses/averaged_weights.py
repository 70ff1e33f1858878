"""Watches for weights of samples that multiply a loss which is one number for all of them."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import (
    SAME,
    Node,
    kind_of,
    live_inputs,
    saved,
)
from trainguard.observe.loop.watch.losses.policy_weights import LOG_PROBABILITY
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32}  # that are looked at
_MOST_NODES = 256  # of what a loss is a sum of
_DEEP = 8  # operations between a number for the batch and the mean that it is made of
_READ = 4096  # weights that are compared with those of another step
# Weights that samples bring along differ from step to step as they do within one: by once their
# spread or more. Those of tasks or of constraints, as many as there are samples, move slowly.
_FRESH = 0.5
_FRESH_MASK = 0.1  # of zeros and ones, which are no weights of tasks; padding is alike in all rows
_LINEAR = {"AddBackward", "MeanBackward", "NegBackward", "RsubBackward", "StackBackward"} | {
    *("SubBackward", "SumBackward")
}
_OF_ONE_NUMBER = {"AddBackward", "ClampBackward", "ClampMinBackward", "DivBackward"} | {
    *("ExpBackward", "MulBackward", "NegBackward", "PowBackward", "RsubBackward", "SubBackward")
}
_ERRORS = {
    "AbsBackward",
    "BinaryCrossEntropyBackward",
    "BinaryCrossEntropyWithLogitsBackward",
    "HuberLossBackward",
    "LinalgVectorNormBackward",
    "LogBackward",
    "LogSigmoidBackward",
    "LogSoftmaxBackward",
    "MseLossBackward",
    "NllLoss2DBackward",
    "NllLossBackward",
    "PowBackward",
    "SmoothL1LossBackward",
    "SoftplusBackward",
}
_BEFORE_A_MEAN = {"AddBackward", "DivBackward", "GatherBackward", "IndexBackward"} | {
    *("MulBackward", "NegBackward", "SubBackward", "SumBackward")
}


@dataclass(slots=True)
class _Weights:
    """
    The weights that were met at one line.

    steps: those in which they were of different sizes for different samples.
    apart: the least share of their spread by which they differ between two such steps.
    follows: whether there were as many of them in another step, when there were other samples.
    """

    steps: int = 0
    apart: float = float("inf")
    follows: bool = False
    last: torch.Tensor = field(default_factory=lambda: torch.zeros(0))

    def add(self, weights: torch.Tensor) -> None:
        """Take down the weights of one step."""
        spread = float((weights - weights.mean()).abs().mean())
        if self.steps and len(self.last) != len(weights):
            self.follows = True
        elif self.steps:
            self.apart = min(self.apart, float((weights - self.last).abs().mean()) / spread)
        self.steps, self.last = self.steps + 1, weights

    @property
    def is_of_samples(self) -> bool:
        """Say whether they come with the samples, beyond a doubt."""
        least = _FRESH_MASK if bool(((self.last == 0) | (self.last == 1)).all()) else _FRESH
        return self.steps > 1 and (self.follows or self.apart >= least)


class AveragedWeights(Watcher):
    """
    The Probe events "averaged" and "focal", found in the graphs of a few steps.

    A loss that is one number for a batch, times a constant for each sample, summed up: whatever
    the constants are, only their mean matters. And a focal loss of one number, which has no sample
    to focus on.
    """

    makes = ("Probe:averaged", "Probe:focal")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[str, _Weights] = {}
        self._focal: dict[str, int] = {}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what a loss is a sum of."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None or _size(loss.grad_fn) != 1:
            return
        self.looked |= {"averaged"}
        with suppress(RuntimeError):  # what was changed since cannot be read
            for product in _products_in(loss.grad_fn):
                mean = _mean_weighed_by(product)
                weights = _weights_in(product, mean) if mean is not None else None
                if weights is not None:
                    self._found.setdefault(_line_of(mean), _Weights()).add(weights)
                focus = _mean_focused_by(product)
                if focus is not None:
                    line = _line_of(focus)
                    self._focal[line] = self._focal.get(line, 0) + 1

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, own in self._found.items():
            yield Probe(
                probe="averaged",
                measured=float(own.steps),
                reference=float(len(own.last)),
                label="of samples" if own.is_of_samples else "",
                source=source,
            )
        for source, steps in self._focal.items():
            yield make_probe("focal", steps, source=source)


def _size(node: Node) -> int:
    """Return how many numbers a node made; 0 where this torch does not tell."""
    known = getattr(node, "_input_metadata", ())
    return torch.Size(known[0].shape).numel() if known else 0


def _products_in(root: Node) -> Iterator[Node]:
    """Yield the products that a loss is a sum of, up to factors that are the same for all."""
    waiting, seen = [root], {root}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        kind, live = kind_of(node), live_inputs(node)
        if kind == "MulBackward":
            yield node
            # What is multiplied by one number is still added up as it is.
            sizes = [_size(before) for before in live]
            through = live if len(live) == 1 else [live[i] for i in (0, 1) if sizes[1 - i] == 1]
        elif kind in _LINEAR or kind in SAME or (kind == "DivBackward" and len(live) == 1):
            through = live
        else:
            through = []
        fresh = [before for before in through if before not in seen]
        seen.update(fresh)
        waiting += fresh


def _mean_weighed_by(product: Node) -> Node | None:
    """Return the mean over the samples that something constant multiplies, if one does."""
    live = live_inputs(product)
    return _mean_in(live[0]) if len(live) == 1 and _size(live[0]) == 1 else None


def _weights_in(product: Node, mean: Node) -> torch.Tensor | None:
    """Return constants, one for each sample of a mean, that multiply it."""
    each = [saved(product, name) for name in ("self", "other")]
    plain = [t for t in each if isinstance(t, torch.Tensor)]  # a plain number is saved as one
    constant = [t for t in plain if not t.requires_grad and t.numel() > 1]
    if not constant or not _are_of(constant[0], _shape_of_mean(mean)):
        return None
    values = constant[0].detach().reshape(-1)[:_READ].to("cpu", torch.float64)
    if bool((values == values[0]).all()) or not bool(values.isfinite().all()):
        return None
    return None if _leaves_out_the_same(mean, values) else values


def _line_of(mean: Node) -> str:
    """Return the line that computes a mean, where a loss function does, or of the backward."""
    token = autograd_graph.token_at(mean)
    return str(token[0].source) if token is not None else caller(2)


def _mean_in(node: Node) -> Node | None:
    """Return the mean of errors that one number is made of, where it is made of one."""
    for _ in range(_DEEP):
        if _is_mean(node):
            return node
        live = live_inputs(node)
        kind = kind_of(node)
        if len(live) != 1 or (kind not in _OF_ONE_NUMBER and kind not in SAME):
            return None
        if _size(live[0]) != 1:
            return None
        node = live[0]
    return None


def _is_mean(node: Node) -> bool:
    """Say whether a node makes one number of the errors of several samples."""
    shape = _shape_of_mean(node)
    if _size(node) != 1 or torch.Size(shape).numel() < 2:
        return False
    kind = kind_of(node)
    if kind not in ("MeanBackward", "SumBackward"):
        return kind in _ERRORS and kind != "PowBackward"
    for _ in range(_DEEP):
        live = live_inputs(node)
        if not live:
            return False
        node = live[0]
        if kind_of(node) in _ERRORS or LOG_PROBABILITY in node.metadata:
            return True
        if len(live) != 1 or not (kind_of(node) in SAME or kind_of(node) in _BEFORE_A_MEAN):
            return False
    return False


def _shape_of_mean(node: Node) -> tuple[int, ...]:
    """Return the shape of what is reduced to one number."""
    if kind_of(node) in ("MeanBackward", "SumBackward"):
        return autograd_graph.sizes(node)
    target = saved(node, "target")
    return tuple(target.shape) if isinstance(target, torch.Tensor) else ()


def _are_of(weights: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Say whether there is a weight for each sample, or for each element of several axes."""
    counts = [torch.Size(shape[:axes]).numel() for axes in range(1, len(shape) + 1)]
    own = tuple(weights.shape)
    # A mask of images has one channel for all of theirs.
    same = len(own) == len(shape) and own[0] == shape[0] > 1
    alike = same and all(size in (1, whole) for size, whole in zip(own, shape, strict=True))
    return alike or weights.numel() in counts


def _leaves_out_the_same(mean: Node, weights: torch.Tensor) -> bool:
    """Say whether a mean is over those elements alone that have a weight: then no harm is done."""
    target, ignored = saved(mean, "target"), getattr(mean, "_saved_ignore_index", None)
    if ignored is None or target is None or target.numel() < len(weights):
        return False
    left_out = (target.reshape(-1)[: len(weights)] == autograd_graph.signed(ignored)).cpu()
    return bool(left_out.any()) and bool((left_out == (weights == 0)).all())


def _mean_focused_by(product: Node) -> Node | None:
    """Return L where a product is (1 - exp(-L)) ** gamma * L, of one mean L."""
    live = live_inputs(product)
    if len(live) != 2 or any(_size(before) != 1 for before in live):
        return None
    for power, loss in (live, live[::-1]):
        kinds = [kind_of(node) for node in _chain(power)]
        mean = _mean_in(loss)
        if kinds[0] == "PowBackward" and "ExpBackward" in kinds and mean is not None:
            return mean if _mean_in(power) is mean else None
    return None


def _chain(node: Node) -> Iterator[Node]:
    """Yield a node and what it is made of, as long as that is one thing."""
    for _ in range(_DEEP):
        yield node
        live = live_inputs(node)
        if len(live) != 1:
            return
        node = live[0]
