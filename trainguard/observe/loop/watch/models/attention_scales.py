"""By what scores of attention are multiplied between queries, keys and their softmax."""

from collections.abc import Iterable, Iterator
from math import isqrt
from typing import NamedTuple

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved

SOFTMAX = ("SoftmaxBackward", "SafeSoftmaxBackward")
_FUSED = "ScaledDotProduct"
_THROUGH = 16  # nodes between a softmax and a product, or a product and a layer
_NARROWEST = 8  # of a head: the root of fewer is a number like others
_NEAR = 0.01  # of the root: 16 bits round it by less
_EVEN = 1e-3  # of the norms of rows: those that were normalised differ by no more
_PRODUCTS = {"BaddbmmBackward", "BmmBackward", "MmBackward"}
# Where queries and keys come from as they are: what else makes them may have given them a size.
_LAYERS = {"AddmmBackward", "ConvolutionBackward", "EmbeddingBackward", "MmBackward"}
_MASKED = {"MaskedFillBackward", "WhereBackward"}
_MOVED = autograd_graph.SAME | autograd_graph.PARTS | {"ExpandBackward", "TBackward"}
_CUT = {"SplitBackward", "UnbindBackward"}
_OF_BIASES = _MOVED | {"EmbeddingBackward", "IndexBackward"}
# Queries, keys, the nodes that made them, and what multiplies their products.
_Found = tuple[torch.Tensor | None, torch.Tensor | None, list[Node], float]


class ScaledScores(NamedTuple):
    """Scores of attention: the node of their softmax, their width, and what multiplies them."""

    softmax: Node
    width: int
    factor: float

    @property
    def is_plain(self) -> bool:
        """Whether the root of the width is a number that somebody may choose as it is."""
        return isqrt(self.width) ** 2 == self.width

    @property
    def is_multiplied(self) -> bool:
        """Whether they are multiplied by the root of the width, by which they are to be divided."""
        root = self.width**0.5
        return self.width >= _NARROWEST and abs(self.factor - root) <= _NEAR * root


def find_scores(nodes: Iterable[Node]) -> Iterator[ScaledScores]:
    """Yield scores that are products of queries and keys as layers have made them."""
    for node in nodes:
        kind = kind_of(node)
        found = _read_fused(node) if kind.startswith(_FUSED) else _read_by_hand(node, kind)
        if found is None:
            continue
        queries, keys, edges, factor = found
        if queries is None or keys is None or _is_even(queries) or _is_even(keys):
            continue
        for before in edges:
            factor *= _factor_from_layer(before)
        if factor:
            yield ScaledScores(node, int(queries.shape[-1]), factor)


def _read_by_hand(softmax: Node, kind: str) -> _Found | None:
    """Return what a softmax of a product is made of; None of others."""
    if kind not in SOFTMAX:
        return None
    product, factor = _follow(softmax.next_functions[0][0])
    if product is None:
        return None
    names = ("batch1", "batch2") if kind_of(product) == "BaddbmmBackward" else ("self", "mat2")
    queries, keys = (saved(product, name) for name in names)
    edges = [before for before, _ in product.next_functions[-2:]]
    return queries, None if keys is None else keys.mT, edges, factor


def _read_fused(node: Node) -> _Found | None:
    """Return what scaled_dot_product_attention is given."""
    queries, keys, scale = (saved(node, name) for name in ("query", "key", "scale"))
    edges = [before for before, _ in node.next_functions[:2]]
    factor = queries.shape[-1] ** -0.5 if queries is not None and scale is None else scale
    return queries, keys, edges, float(factor or 0.0)


def _follow(node: Node) -> tuple[Node, float]:
    """Return the product that scores come from, and what multiplies it; None of other scores."""
    factor = 1.0
    for _ in range(_THROUGH):
        if node is None or kind_of(node) in _PRODUCTS:
            return node, factor
        places = [place for place, (before, _) in enumerate(node.next_functions) if before]
        if kind_of(node) in ("AddBackward", "SubBackward"):
            places = [place for place in places if not _is_bias(node.next_functions[place][0])]
        by = _multiple(node, places[0]) if len(places) == 1 else None
        if by is None:
            break
        node, factor = node.next_functions[places[0]][0], factor * by
    return None, 0.0


def _multiple(node: Node, place: int) -> float | None:
    """Return what an operation multiplies by, where that is one known number."""
    if kind_of(node) in _MOVED | _CUT | _MASKED:
        return 1.0
    by = autograd_graph.constant_at(node, place)
    return by if isinstance(by, float) else None


def _is_bias(node: Node) -> bool:
    """Say whether what is added to scores is a parameter, or rows of one."""
    for _ in range(_THROUGH):
        if node is None or hasattr(node, "variable"):
            return node is not None
        if kind_of(node) not in _OF_BIASES:
            return False
        node = node.next_functions[0][0]
    return False


def _factor_from_layer(node: Node) -> float:
    """Return by what the output of a layer was multiplied; 0 where something else is in between."""
    factor = 1.0
    for _ in range(_THROUGH):
        if node is None:
            return 0.0
        if kind_of(node) in _LAYERS:
            return factor
        live = [place for place, (before, _) in enumerate(node.next_functions) if before]
        by = _multiple(node, live[0]) if len(live) == 1 else None
        if by is None:
            return 0.0
        node, factor = node.next_functions[live[0]][0], factor * by
    return 0.0


def _is_even(rows: torch.Tensor) -> bool:
    """Say whether rows have one norm, as those that were normalised; not on accelerators."""
    if not rows.is_cpu or not rows.is_floating_point():
        return False
    norms = rows.detach()[:8].float().norm(dim=-1)
    return bool((norms - norms.mean()).abs().max() <= _EVEN * norms.mean())
