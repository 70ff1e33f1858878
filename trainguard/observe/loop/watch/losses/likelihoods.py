"""Watches likelihoods of a normal distribution that are written by hand: which spread they want."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import Edge, SumPart, elements_of, resolve
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_OPERATIONS = 8  # of constants between two parts of a product
_ERRORS = {"AbsBackward", "PowBackward"}
_MOVES = {"AddBackward", "RsubBackward", "SubBackward"}
_ALIKE = 1e-3  # of a ratio: what 32 bits round, and no other weight
_Multiple = tuple[Edge, float]


class Likelihoods(Watcher):
    """
    The Probe event "likelihood": squares over a variance that is learned, beside its logarithm.

    `a * s + b * error ** 2 * exp(k * s)` is least where exp(-k * s) is the square of the error
    times -b * k / a, which is one for a normal distribution. measured: what it is, at all looks;
    reference: 1; step: how many.
    """

    makes = ("Probe:likelihood",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._ratios: list[float] = []
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for errors that are divided by a variance, and for its logarithm."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None or loss.numel() != 1:
            return
        ratios = list(_ratios(loss))
        if len(ratios) == 1:
            self.looked.add("likelihood")
            self._ratios += ratios
            self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return the ratio, where it was the same at all looks."""
        if self._ratios and max(self._ratios) - min(self._ratios) <= _ALIKE * abs(self._ratios[0]):
            ratio, looks = self._ratios[-1], len(self._ratios)
            if abs(ratio - 1) > _ALIKE:
                yield make_probe("likelihood", ratio, 1.0, step=looks, source=self._source)


def _ratios(loss: torch.Tensor) -> Iterator[float]:
    """Yield how much larger than its errors a variance is that a loss is least for."""
    parts = list(elements_of(loss.grad_fn))
    plain: defaultdict[Edge, float] = defaultdict(float)
    logarithms: defaultdict[Edge, float] = defaultdict(float)
    for part in parts:
        plain[resolve(part.edge)] += part.factor * part.count
        if kind_of(part.node) == "LogBackward":
            logarithms[resolve(part.node.next_functions[0])] += part.factor * part.count
    for part in parts:
        for error, spread, power in _products(part) if part.count else ():
            for rate, known in _bases(spread, plain, logarithms):
                yield -error * part.count * rate * power / known


def _products(part: SumPart) -> Iterator[tuple[float, Edge, int]]:
    """Yield the factor of an error in a part, and what it is multiplied (1) or divided by (-1)."""
    node = part.node
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    if kind_of(node) not in ("MulBackward", "DivBackward") or len(edges) != 2:
        return
    power = -1 if kind_of(node) == "DivBackward" else 1
    for place in (0,) if power < 0 else (0, 1):
        inner, factor = _multiple_of(edges[place])
        if _is_error(inner[0]):
            other, by = _multiple_of(edges[1 - place])
            yield part.factor * factor * by**power, other, power
            return


def _bases(
    spread: Edge, plain: Mapping[Edge, float], logarithms: Mapping[Edge, float]
) -> Iterator[tuple[float, float]]:
    """Yield what a spread is an exponential of times, and the weight of all its logarithms."""
    node = spread[0]
    base, rate = _multiple_of(node.next_functions[0]) if node.next_functions else (spread, 0.0)
    if kind_of(node) == "ExpBackward" and plain.get(base):
        yield rate, plain[base]
    elif logarithms.get(resolve(spread)):
        yield 1.0, logarithms[resolve(spread)]
    elif kind_of(node) == "PowBackward" and saved(node, "exponent") == 2 and logarithms.get(base):
        yield 2.0, logarithms[base]


def _is_error(node: Node) -> bool:
    """Say whether a node returns squares of a difference, or its sizes."""
    kind = kind_of(node)
    if kind not in _ERRORS or (kind == "PowBackward" and saved(node, "exponent") != 2):
        return False
    before = resolve(node.next_functions[0])[0]
    return before is not None and kind_of(before) in ("SubBackward", "RsubBackward")


def _multiple_of(edge: Edge) -> _Multiple:
    """Return what numbers are a constant multiple of, but for their shape, and the multiple."""
    node, output = edge
    factor = 1.0
    for _ in range(_OPERATIONS):
        live = [place for place, (before, _) in enumerate(node.next_functions) if before]
        by = autograd_graph.constant_at(node, live[0]) if len(live) == 1 else None
        if not isinstance(by, float) or kind_of(node) in _MOVES:
            break
        factor *= by
        node, output = node.next_functions[live[0]]
    return (node, output), factor
