"""What a loss is a weighed sum of: the parts, what each is multiplied by, and what is added."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved

_MOST = 2000  # nodes that a sum is followed through
_MOST_PARTS = 400  # and where it is told what elements are multiplied by
_LARGEST = 1 << 20  # elements of weights that are looked at
_THROUGH = autograd_graph.SAME | {
    "CatBackward",
    "IndexBackward",
    "MeanBackward",
    "StackBackward",
    "SumBackward",
}
SUMS = {"AddBackward", "RsubBackward", "SubBackward"}
_CHOICES = {"MaximumBackward", "MinimumBackward"}
Edge = tuple[Node, int]  # a node, and which of its outputs


@dataclass(frozen=True, slots=True)
class SumPart:
    """
    A part of a sum that is no sum itself: which output of which node.

    factor: what it is multiplied by; of weights for each sample, by the largest. is_moved: whether
    a constant is added on the way. Means and sums of its elements do not count. count: how many
    numbers it is for the sum, which may repeat it; of `elements_of` alone, 0 where that is unknown.
    """

    edge: Edge
    factor: float = 1.0
    is_moved: bool = False
    count: int = 1

    @property
    def node(self) -> Node:
        """The node that makes it."""
        return self.edge[0]


def affine_parts(
    edge: Edge, factor: float = 1.0, ends: Callable[[Node], bool] = lambda _: False
) -> Iterator[SumPart]:
    """Yield the parts of what an output of a node is a sum of; what `ends` it is one itself."""
    waiting, seen = [SumPart(edge, factor)], {edge}
    while waiting and len(seen) < _MOST:
        part = waiting.pop()
        inner = [] if ends(part.node) else list(_split(part))
        if not inner:
            yield part
        for each in inner:
            if each.edge not in seen:
                seen.add(each.edge)
                waiting.append(each)


def _split(part: SumPart) -> Iterator[SumPart]:
    """Yield what a part is a sum or a multiple of, nothing where it is neither."""
    node, kind = part.node, kind_of(part.node)
    live = [place for place, (before, _) in enumerate(node.next_functions) if before is not None]
    if len(live) > 1 and kind not in SUMS | _THROUGH:
        return
    moved = part.is_moved or (kind in SUMS and len(live) == 1)
    for place in live:
        by = 1.0 if kind in _THROUGH else autograd_graph.constant_at(node, place)
        by = _largest_weight(node, place) if by is None else by
        if isinstance(by, int | float) and by:  # on an accelerator it would have to be waited for
            yield SumPart(node.next_functions[place], part.factor * by, moved)


def parts_of_choice(part: SumPart, ends: Callable[[Node], bool]) -> Iterator[SumPart]:
    """Yield the parts of the two of which a part is the smaller or larger one."""
    for edge in part.node.next_functions if kind_of(part.node) in _CHOICES else ():
        if edge[0] is not None:
            yield from affine_parts(edge, part.factor, ends)


def elements_of(root: Node) -> Iterator[SumPart]:
    """Yield what a loss is a sum of, with what each of their elements is multiplied by."""
    waiting, seen = [SumPart((root, 0))], 0
    while waiting and seen < _MOST_PARTS:
        part, seen = waiting.pop(), seen + 1
        inner = list(_split_elements(part))
        waiting += inner
        if not inner:
            yield part


def _split_elements(part: SumPart) -> Iterator[SumPart]:
    """Yield the parts of a sum, a mean or a multiple, nothing for what is neither."""
    node, kind = part.node, kind_of(part.node)
    live = [place for place, (before, _) in enumerate(node.next_functions) if before is not None]
    if kind in ("MeanBackward", "SumBackward") and live:
        given = autograd_graph.elements(node)
        made = torch.Size(autograd_graph.shape_made(node)).numel()
        by: Any = 1.0 if kind == "SumBackward" else made / max(1, given)
        yield SumPart(node.next_functions[live[0]], part.factor * by, count=given)
    elif len(live) == 1 or kind in SUMS:
        for place in live:
            by = autograd_graph.constant_at(node, place)
            if isinstance(by, int | float) and by:
                yield SumPart(node.next_functions[place], part.factor * by, count=part.count)


def _largest_weight(node: Node, place: int) -> float:
    """Return the largest of what a product multiplies by; 0 unless all have a sign."""
    divides = kind_of(node) == "DivBackward" and not place
    kept: Any = None
    if divides or kind_of(node) == "MulBackward":
        kept = saved(node, "self" if place else "other")
    able = isinstance(kept, torch.Tensor) and kept.is_cpu and not kept.is_complex()
    if not able or not 0 < kept.numel() <= _LARGEST:
        return 0.0
    low, high = (float(end) for end in torch.aminmax(kept.detach()))
    if divides:
        low, high = (1 / high, 1 / low) if low > 0 or high < 0 else (0.0, 0.0)
    return high if low >= 0 else low if high <= 0 else 0.0


def resolve(edge: Edge) -> Edge:
    """Return the edge that holds the same numbers, before what changes their shape alone."""
    node, place = edge
    while node is not None and kind_of(node) in autograd_graph.SAME:
        node, place = node.next_functions[0]
    return node, place
