"""Both ends of the edges of a graph, as they stand in what autograd keeps of its messages."""

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved

SUMS = {"IndexAddBackward": "index", "ScatterAddBackward": "index", "IndexPutBackward": "indices"}
READS = {"IndexBackward": "indices", "IndexSelectBackward": "index", "GatherBackward": "index"}
_NEAR = 8  # nodes between the reading of rows and their sum: those of a small network


def find_ends(node: Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return by which indices rows are read, and added up; None where a node is no such sum."""
    ends = first_index(node, SUMS)
    for before, _ in node.next_functions:
        steps = list(autograd_graph.below(before, _NEAR)) if before is not None else []
        reads = [read for read in steps if kind_of(read) in READS]
        begins = first_index(reads[0], READS) if reads else None
        if ends is not None and begins is not None and begins.shape == ends.shape:
            return begins, ends
    return None


def first_index(node: Node, names: dict[str, str]) -> torch.Tensor | None:
    """Return the index of rows that a node reads or adds up by; names: what it keeps them as."""
    kept = saved(node, names[kind_of(node)])
    first = kept[0] if isinstance(kept, tuple) and kept else kept
    if not isinstance(first, torch.Tensor) or first.is_floating_point() or not first.is_cpu:
        return None
    return first.detach() if first.dim() == 1 else first.detach().flatten(1)[:, 0]
