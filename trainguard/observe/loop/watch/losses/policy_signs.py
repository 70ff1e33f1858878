"""Watches whether a loss makes choices likelier or less likely that have paid."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.affine_parts import (
    Edge,
    SumPart,
    affine_parts,
    parts_of_choice,
)
from trainguard.observe.loop.watch.gradients.autograd_graph import (
    Node,
    constants_of,
    is_mask,
    kind_of,
)
from trainguard.observe.loop.watch.losses.policy_weights import (
    PolicyWeights,
    find_steps,
    is_log_probability,
    parts_of_sum,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import is_climbed
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table
from trainguard.observe.tools.named_numbers import PAID, find_numbers
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64, 128}  # that are looked at
_LEAST, _LARGEST = 4, 1 << 16  # weights, each of one choice
_NEAR = 1e-4  # of the largest: what comes of adding up in another order
_RATIO = {"ClampBackward", "ExpBackward"}
_RISING = _RATIO | {"MaximumBackward", "MinimumBackward"}  # with what they are made of
_DEEPEST = 6  # of these, one in another
_DISTINCT = 8  # weights that differ: fewer, such as those of a mask, are in many tables
_ALIKE = 0.9  # a correlation with what is called a cost
_PAID = PAID | {"discounted", "g"}  # words in the names of weights
_COSTS = {"cost", "costs", "penalty", "penalties", "regret", "distance", "distances", "length"}
_COSTS |= {"lengths", "latency", "energy"}  # what is the better the smaller it is


class PolicySigns(Watcher):
    """
    The Probe event "term sign" with the label "policy": log-probabilities that pay is added to.

    What multiplies them, or ratios that rise or fall with them, is in a variable with the name of a
    reward, a return or an advantage: but for its scale, less a base, or as rows of a longer one.
    measured: losses that grow where what has paid becomes likelier; reference: losses of which it
    is known.
    """

    makes = ("Probe:term sign",)
    relies_on = ("PolicyWeights",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._wrong = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Hold the weights of log-probabilities against what the script calls a reward."""
        drawn = self.recorder.watcher(PolicyWeights).drawn_at
        if drawn is None or self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        if is_climbed(self.recorder.windows):
            return
        weighed = list(_weights_of(loss))
        sizes = {weights.size for weights, _ in weighed}
        named = list(find_numbers(min(sizes), _LARGEST)) if sizes else []
        self.looked |= {"term sign"} if weighed else set()
        signs = {sign * _sign_of_pay(weights, named) for weights, sign in weighed}
        if (1 in signs) != (-1 in signs):
            self._looks, self._wrong = self._looks + 1, self._wrong + (1 in signs)
            self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        if self._wrong:
            rest = {"label": "policy", "source": self._source}
            yield make_probe("term sign", self._wrong, self._looks, **rest)


def _weights_of(loss: torch.Tensor) -> Iterator[tuple[Table, int]]:
    """
    Yield what log-probabilities of choices are multiplied by in a loss, in their order.

    And 1 where the loss rises with a log-probability of positive weight, -1 where it falls.
    """
    parts = list(_parts_below((loss.grad_fn, 0)))
    several = [part for part in parts if _is_weighed(part.node)]
    for part in several:
        way, weights = _way_of(_weighed_edge(part.node)), next(constants_of(part.node))
        if way and weights.is_cpu and _is_told(own := np.array(array_of(weights)).ravel()):
            yield own.astype(np.float64), way if part.factor > 0 else -way
    single = np.array([part.factor for part in find_steps(parts)], np.float64)
    if not several and _is_told(single):
        yield single, 1


def _parts_below(edge: Edge, factor: float = 1.0) -> Iterator[SumPart]:
    """Yield the parts of a loss, those of a choice, and those below a mask, after it."""
    parts = list(affine_parts(edge, factor, ends=_is_weighed))
    parts += [inner for part in parts for inner in parts_of_choice(part, _is_weighed)]
    yield from parts
    for part in parts:
        if _is_weighed(part.node) and is_mask(next(constants_of(part.node))):
            yield from _parts_below(_weighed_edge(part.node), part.factor)


def _weighed_edge(node: Node) -> Edge:
    """Return what a product weighs."""
    edge: Edge = next(edge for edge in node.next_functions if edge[0] is not None)
    return edge


def _is_told(weights: Table) -> bool:
    """Say whether weights are several, and not all the same."""
    real = weights.dtype.kind == "f" and _LEAST <= weights.size <= _LARGEST
    return real and bool(np.ptp(weights) > 0)


def _way_of(edge: Edge, depth: int = _DEEPEST) -> int:
    """Return 1 where numbers rise with log-probabilities of choices, -1 if they fall, else 0."""
    ways = set[int]()
    for part in affine_parts(edge, ends=is_log_probability):
        kind, before = kind_of(part.node), part.node.next_functions
        sign = 1 if part.factor > 0 else -1
        if is_log_probability(part.node):
            ways.add(sign)
        elif depth and kind in _RISING | {"DivBackward"}:
            for place, inner in enumerate(before):
                # Of probabilities, which are positive, both above the line and below it.
                below = place and kind == "DivBackward"
                way = _way_of(inner, depth - 1) if inner[0] is not None else 0
                ways |= {-sign * way if below else sign * way} - {0}
    return ways.pop() if len(ways) == 1 else 0


def _sign_of_pay(weights: Table, named: list[tuple[str, Table]]) -> int:
    """Return 1 where weights are what the script calls pay, -1 where they are its opposite."""
    tables = [(words_in(name), table.ravel()) for name, table in named]
    paid = [table for words, table in tables if words & _PAID and not words & _COSTS]
    bases = [table for _, table in tables if table.size == weights.size]
    costs = [table for words, table in tables if words & _COSTS and table.size == weights.size]
    if any(np.ptp(own) > 0 and _correlation(own, weights) > _ALIKE for own in costs):
        return 0  # what pays may be a name for what costs less
    signs = {
        sign
        for sign in (1, -1)
        for own in paid
        if _are_the_same(sign * weights, own, bases) or _are_some(sign * weights, own)
    }
    return signs.pop() if len(signs) == 1 else 0


def _correlation(one: Table, other: Table) -> float:
    """Return how alike two columns rise and fall, whichever way."""
    return abs(float(np.corrcoef(one, other)[0, 1]))


def _are_the_same(weights: Table, paid: Table, bases: list[Table]) -> bool:
    """Say whether weights are what was paid, but for a scale, or what is left without a base."""
    if paid.size != weights.size or not paid.any():
        return False
    if np.allclose(weights / np.abs(weights).max(), paid / np.abs(paid).max(), atol=_NEAR):
        return True
    near = _NEAR * float(np.abs(weights).max())
    rest = paid - weights
    return bool(np.ptp(rest) > near) and any(np.allclose(rest, own, atol=near) for own in bases)


def _are_some(weights: Table, paid: Table) -> bool:
    """Say whether weights are rows of a longer table, which are told apart by their numbers."""
    several = paid.size > weights.size and len(np.unique(weights)) >= _DISTINCT
    return several and bool(np.isin(weights, paid).all())


def _is_weighed(node: Node) -> bool:
    """Say whether a node multiplies log-probabilities of choices, or ratios, by numbers."""
    live = [before for before, _ in node.next_functions if before is not None]
    if kind_of(node) != "MulBackward" or len(live) != 1:
        return False
    weights = next(constants_of(node), None)
    several = weights is not None and weights.numel() >= _LEAST
    return several and any(map(is_log_probability, parts_of_sum(live[0], _RATIO)))
