"""What a loss is a weighed sum of: the parts, what each is multiplied by, and what is added."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved

_MOST = 2000  # nodes that a sum is followed through
_LARGEST = 1 << 20  # elements of weights that are looked at
_THROUGH = autograd_graph.SAME | {
    "CatBackward",
    "IndexBackward",
    "MeanBackward",
    "StackBackward",
    "SumBackward",
}
_SUMS = {"AddBackward", "RsubBackward", "SubBackward"}
Edge = tuple[Node, int]  # a node, and which of its outputs


@dataclass(frozen=True, slots=True)
class SumPart:
    """
    A part of a sum that is no sum itself: which output of which node.

    factor: what it is multiplied by; of weights for each sample, by the largest. is_moved: whether
    a constant is added on the way. Means and sums of its elements do not count.
    """

    edge: Edge
    factor: float = 1.0
    is_moved: bool = False

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
    if kind in _SUMS:
        moved = part.is_moved or len(live) == 1
        signs = {
            "AddBackward": (1.0, node._saved_alpha),  # noqa: SLF001 torch names it so
            "SubBackward": (1.0, -node._saved_alpha),  # noqa: SLF001
            "RsubBackward": (-node._saved_alpha, 1.0),  # noqa: SLF001
        }[kind]
        for place in live:
            yield SumPart(node.next_functions[place], part.factor * float(signs[place]), moved)
        return
    if kind in _THROUGH:
        by = 1.0
    elif kind == "NegBackward":
        by = -1.0
    elif kind in ("MulBackward", "DivBackward") and len(live) == 1:
        by = _size(node, kind, live[0])
    else:
        return
    if by:
        for place in live:
            yield SumPart(node.next_functions[place], part.factor * by, part.is_moved)


def _size(node: Node, kind: str, place: int) -> float:
    """Return what a product multiplies by: of several numbers the largest; 0 where unknown."""
    if kind == "DivBackward" and place:
        return 0.0
    kept: Any = saved(node, "self" if place else "other")
    if isinstance(kept, int | float):
        return 1 / kept if kind == "DivBackward" and kept else float(kept)
    if not isinstance(kept, torch.Tensor) or not kept.is_cpu or kept.is_complex():
        return 0.0
    if kept.numel() > _LARGEST:
        return 0.0
    if kept.numel() == 1:
        number = float(kept)
        return 1 / number if kind == "DivBackward" and number else number
    low, high = torch.aminmax(kept.detach()) if kept.numel() else (0.0, 0.0)
    return float(high) if low >= 0 else float(low) if high <= 0 else 0.0


def resolve(edge: Edge) -> Edge:
    """Return the edge that holds the same numbers, before what changes their shape alone."""
    node, place = edge
    while node is not None and kind_of(node) in autograd_graph.SAME:
        node, place = node.next_functions[0]
    return node, place
