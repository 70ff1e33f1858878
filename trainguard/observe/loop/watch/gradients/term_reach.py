"""Which optimizers the terms of a loss reach, as far as its graph tells before it is run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.window import Window

_MOST_TERMS = 8
_MOST_NODES = 4000  # of one term
_SCALES = {"MulBackward", "DivBackward", "NegBackward", "ToCopyBackward"}
_SUMS = {"AddBackward", "SubBackward", "RsubBackward"}


@dataclass(frozen=True, slots=True)
class TermReach:
    """
    One term of a loss, and the optimizers that have parameters below it.

    kind: the loss function that returned it, or what autograd calls it. source: where that was
    called. parameter: one that it reaches.
    """

    kind: str
    source: str
    windows: tuple[Window, ...]
    parameter: torch.Tensor


def split(loss: torch.Tensor, windows: Sequence[Window]) -> list[TermReach]:
    """Return the terms that reach fewer optimizers than the whole; none where that is not known."""
    nodes = list(_terms(loss.grad_fn))
    if not 2 <= len(nodes) <= _MOST_TERMS:
        return []
    owners = {id(p): window for window in windows for p in window.parameters}
    reaches = []
    for node in nodes:
        reached: dict[int, tuple[Window, torch.Tensor]] = {}
        for count, below in enumerate(autograd_graph.below(node, _MOST_NODES)):
            leaf = getattr(below, "variable", None)
            if count >= _MOST_NODES - 1:
                return []
            if leaf is not None and id(leaf) in owners:
                reached.setdefault(id(owners[id(leaf)]), (owners[id(leaf)], leaf))
        reaches.append((node, reached))
    whole = set().union(*(reached for _, reached in reaches))
    return [_describe(node, r) for node, r in reaches if r and len(r) < len(whole)]


def _describe(node: Node, reached: dict[int, tuple[Window, torch.Tensor]]) -> TermReach:
    """Return a term with its name and the optimizers that it reaches."""
    token = autograd_graph.token_at(node)
    kind = token[0].function if token else autograd_graph.kind_of(node).removesuffix("Backward")
    windows, parameters = zip(*reached.values(), strict=True)
    return TermReach(kind, token[0].source if token else "", windows, parameters[0])


def _terms(root: Node) -> Iterator[Node]:
    """Yield the nodes that a loss is the sum of, but for constant factors."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        live = [before for before, _ in node.next_functions if before is not None]
        kind = autograd_graph.kind_of(node)
        if autograd_graph.token_at(node) is None and (
            kind in _SUMS or (kind in _SCALES and len(live) == 1)
        ):
            waiting += live
        else:
            yield node
