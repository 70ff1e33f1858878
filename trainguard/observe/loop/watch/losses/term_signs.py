"""Watches terms that are meant to go one way: an entropy bonus, and a divergence from a prior."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import distributions

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import (
    SUMS,
    Edge,
    SumPart,
    affine_parts,
    resolve,
)
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, live_inputs
from trainguard.observe.loop.watch.losses.policy_weights import is_log_probability
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then, shielded
from trainguard.observe.loop.window import is_climbed
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64, 128}  # that are looked at
_MOST_NODES = 20000
_CONSTANTS = 8  # operations with constants between two terms
_ENTROPY = "trainguard: entropy"
_PROBABILITIES = {"ExpBackward", "SoftmaxBackward"}
_LOGARITHMS = {"LogBackward", "LogSoftmaxBackward"}
# Loss functions of torch, as they stand in a graph: each is to become small.
_DISTANCES = {
    *("NllLossBackward", "NllLoss2DBackward", "BinaryCrossEntropyBackward"),
    *("BinaryCrossEntropyWithLogitsBackward", "MseLossBackward"),
    *("SmoothL1LossBackward", "HuberLossBackward"),
}


class TermSigns(Watcher):
    """
    The Probe events "term sign": terms of a loss that can be meant in one direction alone.

    label: "entropy", of a policy whose log-probabilities are in the same loss, "divergence", of
    normal distributions from the standard one, "reference", of a policy's log-probabilities from
    constant ones, or "distance", of a loss that is one loss function of torch and nothing else.
    measured: looks at which such a term is added to the loss with the sign that makes it worse,
    reference: looks at which there was one.
    """

    makes = ("Probe:term sign",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._seen: dict[str, list[int]] = {}  # looks, and those with the wrong sign
        self._source: dict[str, str] = {}

    def install(self, patches: Patches) -> None:
        """Recognise the entropies of distributions."""
        for kind in vars(distributions).values():
            if isinstance(kind, type) and "entropy" in vars(kind):
                patches.replace(kind, "entropy", self._marking)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the signs of the terms of a loss."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        if is_climbed(self.recorder.windows):
            return
        parts = list(affine_parts((loss.grad_fn, 0), ends=_is_term))
        entropies = [own for part in parts for own in _entropy_of(part)]
        if entropies and any(map(is_log_probability, _below(loss))):
            self._take("entropy", any(factor > 0 for factor in entropies))
        found = list(divergences(parts))
        if found:
            self._take("divergence", any(factor < 0 for factor in found))
        apart = [part.factor for part in parts if _is_apart(part.node)]
        if apart:
            self._take("reference", any(factor < 0 for factor in apart))
        if len(parts) == 1 and _is_distance(parts[0].node):
            self._take("distance", parts[0].factor < 0)

    def finish(self) -> Iterable[Event]:
        """Return what was seen of each."""
        self.looked |= {"term sign"} if self._seen else set()
        for label, (looks, wrong) in self._seen.items():
            if not wrong:
                continue
            source = self._source.get(label, "")
            yield make_probe("term sign", wrong, looks, label=label, source=source)

    def _take(self, label: str, is_wrong: bool) -> None:
        """Take in a look at a term."""
        seen = self._seen.setdefault(label, [0, 0])
        seen[0] += 1
        seen[1] += is_wrong
        if is_wrong:
            self._source.setdefault(label, caller())

    def _marking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return an `entropy` that leaves a mark at what it returns."""
        compiling = torch.compiler.is_compiling

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Do what the original does."""
            result = original(*args, **kwargs)
            if not compiling() and self.recorder.patches.live:
                self._leave_mark(result)
            return result

        return wrapper

    @shielded
    def _leave_mark(self, result: Any) -> None:
        """Mark entropies that learn."""
        node: Node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None:
            node.metadata[_ENTROPY] = True


def _below(loss: torch.Tensor) -> Iterator[Any]:
    """Yield the nodes of a loss, nothing of one that is too large."""
    nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
    return iter(nodes if len(nodes) < _MOST_NODES else [])


def _is_distance(node: Node) -> bool:
    """Say whether a node is a loss function over a batch; what it is of each sample is weighed."""
    return kind_of(node) in _DISTANCES and bool(autograd_graph.saved(node, "reduction"))


def _is_term(node: Node) -> bool:
    """Say whether a node returned what is looked for as it is, and not as a sum."""
    return _is_entropy(node) or _is_apart(node)


def _is_entropy(node: Node) -> bool:
    """Say whether a node returned the entropies of distributions."""
    return _ENTROPY in node.metadata


def _entropy_of(part: SumPart) -> Iterator[float]:
    """Yield the factor of the entropy that a part is: marked, or p log p by hand."""
    node = part.node
    if _is_entropy(node):
        yield part.factor
    elif kind_of(node) == "MulBackward":
        kinds = {kind_of(resolve(edge)[0]) for edge in node.next_functions if edge[0] is not None}
        if len(kinds) == 2 and kinds & _PROBABILITIES and kinds & _LOGARITHMS:
            yield -part.factor


def _is_apart(node: Node) -> bool:
    """
    Say whether a node returned how far log-probabilities are from constant ones: never below zero.

    exp(d) - d - 1, as it is or clamped, or the square of d: d is one less the other.
    """
    kind = kind_of(node)
    if kind == "ClampBackward":
        inner = _before_constants(node.next_functions[0][0])
        return kind_of(inner) != "ClampBackward" and _is_apart(inner)
    if kind == "PowBackward":
        return autograd_graph.saved(node, "exponent") == 2 and _moved(node.next_functions[0]) != 0
    # Both are looked at first: a sum of many terms would be walked through at each of them.
    ends = [_before_constants(n) for n in live_inputs(node)] if kind in SUMS else []
    if sorted(kind_of(end) == "ExpBackward" for end in ends) != [False, True]:
        return False
    if not any(map(is_log_probability, ends)):
        return False
    parts = {kind_of(part.node) == "ExpBackward": part for part in affine_parts((node, 0))}
    ratio, other = parts[True], parts[False]
    way = _moved(ratio.node.next_functions[0])
    return way != 0 and ratio.factor > 0 and other.factor == -way * ratio.factor


def _before_constants(node: Node) -> Node:
    """Return what constants were added to, a few at most, whatever its shape was changed to."""
    for _ in range(_CONSTANTS):
        live = live_inputs(node)
        if len(live) != 1 or kind_of(node) not in {*SUMS, *autograd_graph.SAME, "NegBackward"}:
            break
        node = live[0]
    return node


def _moved(edge: Edge) -> float:
    """Return the factor of the log-probability that constants are added to; 0 of anything else."""
    parts = list(affine_parts(edge))
    is_one = len(parts) == 1 and parts[0].is_moved and is_log_probability(parts[0].node)
    return parts[0].factor if is_one else 0.0


def divergences(parts: list[SumPart]) -> Iterator[float]:
    """
    Yield the factors of divergences from the standard normal distribution, of half of it.

    mu**2 + exp(l) - l, with l the logarithm of a variance, or mu**2 + s**2 - 2 log(s).
    """
    known = {resolve(part.edge): part.factor for part in parts}
    squares = [(part.factor, base) for part in parts if (base := _squared(part)) is not None]
    for part in parts:
        if kind_of(part.node) == "ExpBackward":
            spread = resolve(part.node.next_functions[0])
            opposite = known.get(spread, 0.0) * part.factor < 0
        elif kind_of(part.node) == "LogBackward":
            spread = resolve(part.node.next_functions[0])
            opposite = any(base == spread and f * part.factor < 0 for f, base in squares)
        else:
            continue
        sign = part.factor if kind_of(part.node) == "ExpBackward" else -part.factor
        if opposite and any(base != spread and f * sign > 0 for f, base in squares):
            yield sign


def _squared(part: SumPart) -> Edge | None:
    """Return what a part is the square of, if it is one."""
    node = part.node
    exponent = autograd_graph.saved(node, "exponent") if kind_of(node) == "PowBackward" else None
    if not node.next_functions:
        return None
    first, *others = node.next_functions
    twice = kind_of(node) == "MulBackward" and others == [first]
    return resolve(first) if exponent == 2 or twice else None
