"""Watches what weighs the steps of an episode: whether returns stand in the order of the steps."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import affine_parts
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.policy_weights import find_steps
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.least_squares import Table, fit_columns
from trainguard.observe.tools.named_numbers import REWARDS, find_numbers
from trainguard.observe.tools.owners import find_owners, words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 256
_SHORTEST, _LONGEST = 8, 4096  # steps of an episode: of fewer, three numbers fit by chance
_SIDE_BY_SIDE = 2  # axes: of the steps, and of the episodes
_EXACT = 1e-4  # of the weights' deviation: the rounding of float32
_DEEPEST = 8  # operations below a step
_USUAL = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)  # discounts
_ALIKE = 1e-3  # deviations, between returns: float32 rounds them by less
_ROWS = 24  # with a baseline: four numbers and a constant fit a few weights by chance
# Words in the names of what is taken off returns.
_BASELINES = {"v", "val", "vals", "value", "values", "baseline", "baselines", "critic"}
_DISCOUNTS = (0.3, 0.9999)  # one of 1, with equal rewards, is a ramp in either order


class ReturnOrders(Watcher):
    """
    The Probe events "returns reversed": losses whose weights are returns from the last step on.

    measured: how many episodes are weighed so, reference: of how many whose weights are returns.
    And "returns mixed": the same of returns in any other order than that in which their
    log-probabilities were computed.
    """

    makes = ("Probe:returns reversed", "Probe:returns mixed")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._known = self._reversed = self._mixed = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare constants that are multiplied below a loss with rewards of the same length."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        weights = list(_find_weights(loss))
        numbers = [*find_numbers(_SHORTEST, _LONGEST)] if weights else []
        tables = [table for name, table in numbers if words_in(name) & REWARDS]
        baselines = [table for name, table in numbers if words_in(name) & _BASELINES]
        rewards = [table.reshape(-1) for table in tables]
        for row, in_time in weights:
            if row.ndim > 1 and self._count_side_by_side(row, tables):
                continue
            if self._count(_find_order_beside(row, tables, baselines)):
                continue
            row = row.reshape(-1)  # of episodes that come one after the other
            known = [own for own in rewards if len(own) <= len(row)]
            orders = {_find_order(part, own) for own in known for part in _episodes(row, own)} - {0}
            whole = [own for own in known if len(own) == len(row)] if in_time else []
            mixed = not orders and any(_are_mixed(row, own) for own in whole)
            if self._count(orders or ({1} if mixed else set())):
                self._mixed += mixed

    def _count_side_by_side(self, weights: Table, rewards: list[Table]) -> bool:
        """Count weights of (steps, episodes), or turned, where they are of rewards that are so."""
        orders = {
            _find_order(*pair)
            for own in rewards
            if own.shape == weights.shape
            for made in (own, own - own.mean(1, keepdims=True))
            for pair in ((weights, made), (weights.T, made.T))
            if len(pair[0]) >= _SHORTEST
        }
        return self._count(orders)

    def _count(self, orders: set[int]) -> bool:
        """Count weights of which the order is known."""
        orders -= {0}
        if orders:
            self._known += 1
            self._reversed += orders == {-1}
            self._source = self._source or caller()
        return bool(orders)

    def finish(self) -> Iterable[Event]:
        """Return how many were reversed, or in another order."""
        if self._known:
            self.looked.add("returns reversed")
            rest = {"source": self._source}
            yield make_probe("returns reversed", self._reversed, self._known, **rest)
            if self._mixed:
                yield make_probe("returns mixed", self._mixed, self._known, **rest)


def _find_weights(loss: torch.Tensor) -> Iterator[tuple[Table, bool]]:
    """
    Yield constants, one for each step of an episode, that something learned is multiplied by.

    And whether what they weigh was computed step by step, in their order.
    """
    for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
        for kept in filter(_is_row, autograd_graph.constants_of(node)):
            table = array_of(kept.detach().double())
            if np.isfinite(table).all():
                in_time = _are_in_time(_steps_below(node, table.size))
                several = table.ndim == _SIDE_BY_SIDE and min(table.shape) > 1
                yield (table if several else table.reshape(-1)), in_time
    steps = find_steps(affine_parts((loss.grad_fn, 0)))
    if _SHORTEST <= len(steps) <= _LONGEST:
        yield np.array([part.factor for part in steps]), _are_in_time([p.node for p in steps])


def _steps_below(product: Node, count: int) -> list[Node]:
    """Return what a product joins of so many steps, nothing where it joins no such parts."""
    node = next(before for before, _ in product.next_functions if before is not None)
    while autograd_graph.kind_of(node) in autograd_graph.SAME | {"NegBackward"}:
        node = node.next_functions[0][0]
        if node is None:
            return []
    joined = autograd_graph.kind_of(node) in ("StackBackward", "CatBackward")
    steps = [before for before, _ in node.next_functions] if joined else []
    return steps if len(steps) == count and None not in steps else []


def _are_in_time(steps: list[Node]) -> bool:
    """Say whether steps were computed one after the other, as torch numbers its operations."""
    numbers = [node._sequence_nr() for node in steps]  # noqa: SLF001 torch names it so
    above = [each for node in steps for each in _chain_of(node)]  # what is shared was one batch
    return bool(numbers) and numbers == sorted(set(numbers)) and len(set(above)) == len(above)


def _chain_of(node: Node) -> Iterator[Node]:
    """Yield a node and what it is made of, as far as operations go, the first input of each."""
    for _ in range(_DEEPEST):
        yield node
        inputs = [each for each in autograd_graph.live_inputs(node) if each.next_functions]
        if not inputs:
            return
        node = inputs[0]


def _episodes(weights: Table, rewards: Table) -> list[Table]:
    """Return what may be the episode of some rewards: all weights, the last of them, the first."""
    count = len(rewards)
    return [weights] if count == len(weights) else [weights[-count:], weights[:count]]


def _is_row(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has a constant number for each step of an episode."""
    here = tensor.is_cpu and tensor.layout == torch.strided and not tensor.is_complex()
    return here and not tensor.requires_grad and _SHORTEST <= tensor.numel() <= _LONGEST


def _find_order(weights: Table, rewards: Table) -> int:
    """Return 1 where weights are returns up to a scale, -1 where they are in reverse, else 0."""
    if _are_returns(weights, rewards):
        return 1
    return -1 if _are_returns(weights[::-1], rewards) else 0


def _find_order_beside(weights: Table, rewards: list[Table], baselines: list[Table]) -> set[int]:
    """Return the orders of returns that weights are, once a baseline of that shape is taken off."""
    orders = set[int]()
    for own in rewards:
        for off in baselines:
            if own.shape == off.shape == weights.shape and (len(own) - 1) * own[0].size >= _ROWS:
                ways = ((1, weights, off), (-1, weights[::-1], off[::-1]))
                orders |= {way for way, *tables in ways if _are_returns(tables[0], own, tables[1])}
    return orders


def _are_mixed(weights: Table, rewards: Table) -> bool:
    """Say whether weights are returns up to a scale in an order that is neither way round."""
    for discount in {*_find_discounts(), *_USUAL}:
        returns, running = [], 0.0
        for reward in rewards[::-1]:
            running = reward + discount * running
            returns.append(running)
        made = _normalise(np.array(returns[::-1]))
        for own in (_normalise(weights), _normalise(-weights)):
            same = np.allclose(np.sort(own), np.sort(made), atol=_ALIKE)
            if same and not any(np.allclose(own, each, atol=_ALIKE) for each in (made, made[::-1])):
                return True
    return False


def _find_discounts() -> Iterator[float]:
    """Yield the numbers that the script calls a discount."""
    for _, _, values in find_owners():
        for name, value in values.items():
            if type(value) is float and words_in(str(name)) & {"discount", "gamma"}:
                yield value


def _normalise(row: Table) -> Table:
    """Return numbers of mean 0 and deviation 1."""
    made: Table = (row - row.mean()) / max(float(row.std()), 1e-30)
    return made


def _are_returns(weights: Table, rewards: Table, off: Table | None = None) -> bool:
    """
    Say whether each weight is a discount times the next, its reward, and a constant.

    off: what is taken off both weights, such as the value of each state.
    """
    beside = [] if off is None else [off[:-1].ravel(), off[1:].ravel()]
    columns = np.column_stack([weights[1:].ravel(), rewards[:-1].ravel(), *beside])
    factors, rest = fit_columns(columns, weights[:-1].ravel())
    size, equal = float(np.std(weights)), float(np.ptp(rewards[:-1])) == 0
    low, high = _DISCOUNTS
    discounted = low <= factors[0] <= (high if equal else 1 + _EXACT)
    return size > 0 and rest <= _EXACT * size and discounted and (equal or abs(factors[1]) > _EXACT)
