"""Watches graphs that a training passes messages along: whether edges to be predicted are in it."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.models.message_ends import (
    READS,
    SUMS,
    find_ends,
    first_index,
)
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.owners import find_owners, words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 8, 64}  # that are looked at
_MOST_NODES = 4096
_LEAST = 32  # edges that are held out: fewer may be edges by chance
_LEAST_NODES, _MOST_ENTRIES = 16, 2**24  # of a graph, and of its matrix
_DENSE = 0.3  # of all pairs: in such a graph most pairs are edges
_HELD_OUT = {"dev", "eval", "heldout", "holdout", "test", "val", "valid", "validation"}
_JOINTS = {"CatBackward", "MulBackward", "SubBackward"}  # of what is scored
_FEW_EDGES = 0.1  # of pairs that are drawn to have none
_WITHOUT = {"neg", "negative", "negatives", "false", "fake", "nonedges", "non"}
_WITH = {"pos", "positive", "positives", "true"}

Codes = np.ndarray[Any, np.dtype[np.int64]]  # of pairs of nodes: the first times how many, and one


class PassedEdges(Watcher):
    """
    The Probe events "edges passed": edges of an evaluation, by their name, that messages go along.

    measured: how many of them do, reference: of how many; label: the name.
    """

    makes = ("Probe:edges passed",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[str, Probe] = {}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for a graph below the loss, and for edges that are held out by their name."""
        if self.recorder.age not in _STEPS or self._found or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        graph = _find_graph(nodes)
        if graph is None:
            return
        edges, count = graph
        contrasted = any(
            not _are_in(pairs, edges, count).mean() > _FEW_EDGES for pairs in _find_scored(nodes)
        )
        for name, pairs in _find_held_out(count, contrasted=contrasted):
            self.looked.add("edges passed")
            there = _are_in(pairs, edges, count)
            more = {"step": self.recorder.steps, "label": name, "source": caller()}
            self._found[name] = make_probe("edges passed", there.sum(), len(there), **more)

    def finish(self) -> Iterable[Event]:
        """Return how many edges of each name messages go along."""
        return self._found.values()


def _are_in(pairs: Codes, edges: Codes, count: int) -> Any:
    """Say of each pair of nodes whether it is an edge, in either direction."""
    border = _find_border(edges, count)
    # Where some number of the second kind is below its first, they begin at zero again.
    if pairs[0].max() < border and pairs[1].min() < border and pairs[1].max() < count - border:
        pairs = np.stack([pairs[0], pairs[1] + border])
    there = np.isin(pairs[0] * count + pairs[1], edges)
    return there | np.isin(pairs[1] * count + pairs[0], edges)


def _find_border(edges: Codes, count: int) -> int:
    """Return the first node of the second kind where edges join two kinds alone; 0 where not."""
    ends = np.stack([edges // count, edges % count])
    ends = ends[:, ends[0] != ends[1]]  # a node may have an edge to itself
    lower, upper = ends.min(0, initial=count), ends.max(0, initial=0)
    return int(upper.min()) if ends.size and lower.max() < upper.min() else 0


def _find_scored(nodes: list[Node]) -> Iterator[Codes]:
    """Yield the pairs of rows that a loss multiplies, subtracts or joins with each other."""
    for node in nodes:
        if kind_of(node) in _JOINTS and len(node.next_functions) == 2:
            ends = [first_index(one, READS) for one in _reads_before(node)]
            known = [end for end in ends if end is not None and len(end) >= _LEAST]
            if len(known) == 2 and known[0].shape == known[1].shape:
                yield torch.stack(known).long().numpy()


def _reads_before(node: Node) -> Iterator[Node]:
    """Yield the nodes that read rows for both sides of a node."""
    for before, _ in node.next_functions:
        if before is not None and kind_of(before) in READS:
            yield before


def _find_graph(nodes: list[Node]) -> tuple[Codes, int] | None:
    """Return the edges that messages go along below a loss, and of how many nodes the graph is."""
    for node in nodes:
        kind = kind_of(node)
        if kind in ("MmBackward", "SparseAddmmBackward"):
            found = _edges_of_matrix(saved(node, "mat1" if kind != "MmBackward" else "self"))
        elif kind in SUMS:
            found = _edges_of_sum(node)
        else:
            continue
        if found is not None:
            return found
    return None


def _edges_of_matrix(matrix: torch.Tensor | None) -> tuple[Codes, int] | None:
    """Return the edges of a matrix that is multiplied with one row for each node."""
    if matrix is None or matrix.requires_grad or not matrix.is_cpu or matrix.dim() != 2:
        return None
    count = len(matrix)
    fits = matrix.shape[1] == count >= _LEAST_NODES
    if not fits or (matrix.layout == torch.strided and matrix.numel() > _MOST_ENTRIES):
        return None
    if matrix.layout == torch.strided:
        places = matrix.detach().nonzero().T
    else:
        sparse: torch.Tensor = matrix.detach().to_sparse_coo()  # type: ignore[no-untyped-call]
        places = sparse.coalesce().indices()
    return _encode(places[0], places[1], count)


def _edges_of_sum(node: Node) -> tuple[Codes, int] | None:
    """Return the edges of rows that are read by one index, and added up by another."""
    shape, joined = autograd_graph.shape_made(node), find_ends(node)
    if joined is None or not shape or shape[0] < _LEAST_NODES:
        return None
    return _encode(*joined, shape[0])


def _encode(begins: torch.Tensor, ends: torch.Tensor, count: int) -> tuple[Codes, int] | None:
    """Return a number for each edge, where few pairs of nodes are one."""
    codes = np.unique((begins.long() * count + ends.long()).numpy())
    return (codes, count) if 0 < len(codes) <= _DENSE * count * count else None


def _find_held_out(count: int, *, contrasted: bool) -> Iterator[tuple[str, Codes]]:
    """
    Yield edges that are held out by their name, where pairs without an edge are, too.

    contrasted: whether the loss is of pairs without one, whatever they are called.
    """
    named: dict[tuple[str, int], tuple[str, set[str], Codes]] = {}
    for owner, _, values in find_owners():
        for key, value in values.items():
            wanted = isinstance(key, str) and words_in(key) & _HELD_OUT
            if not wanted or (key, id(value)) in named:
                continue
            pairs = _as_pairs(value, count)
            if pairs is not None:
                inside = owner and type(values) is dict
                label = f"{owner}[{key!r}]" if inside else key
                named[key, id(value)] = label, words_in(key), pairs
    contrasted = contrasted or any(words & _WITHOUT for _, words, _ in named.values())
    for name, words, pairs in named.values():
        if not words & _WITHOUT and (words & _WITH or contrasted):
            yield name, pairs


def _as_pairs(value: Any, count: int) -> Codes | None:
    """Return whole numbers as pairs of nodes, (2, E); None of anything else."""
    if isinstance(value, torch.Tensor):
        able = value.is_cpu and value.dtype in (torch.int32, torch.int64)
        value = array_of(value) if able and value.dim() == 2 else None
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind != "i":
        return None
    pairs = value if len(value) == 2 else value.T
    if len(pairs) != 2 or pairs.shape[1] < _LEAST or pairs.min() < 0 or pairs.max() >= count:
        return None
    return pairs.astype(np.int64)
