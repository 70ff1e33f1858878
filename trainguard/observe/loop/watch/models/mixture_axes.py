"""Finds mixtures in the graph of a loss: along which axis their weights sum to one."""

from collections.abc import Iterable, Iterator

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, signed

_SUMS = {"AddBackward", "SubBackward"}
_KEPT = {"AliasBackward", "CloneBackward", "ToCopyBackward"}  # each number stays in its place


def find_mixture_axes(nodes: Iterable[Node]) -> Iterator[tuple[int, int]]:
    """
    Yield the axes along which logarithms of weights are normalised, and along which they are used.

    As counted from the last one, of `logsumexp(log_softmax(w) + log_prob)`, where nothing that
    moves an axis is in between, and both are equally large: what goes on from state to state, as in
    hidden Markov models, is summed over the states before, and normalised over those after.
    """
    for node in nodes:
        if kind_of(node) != "LogsumexpBackward":
            continue
        used = [signed(each) for each in node._saved_dim]  # noqa: SLF001 torch names it so
        added = _before(node.next_functions[0][0])
        if added is None:
            continue
        shape = autograd_graph.shape_made(added)
        rank = len(shape)
        sides = autograd_graph.live_inputs(added) if kind_of(added) in _SUMS else []
        weights = [each for each in map(_before, sides) if each is not None and len(used) == 1]
        alike = all(autograd_graph.shape_made(side) == shape for side in sides)
        for side in weights if rank and alike else ():
            if kind_of(side) == "LogSoftmaxBackward":
                own = signed(autograd_graph.saved(side, "dim"))
                yield own % rank - rank, used[0] % rank - rank


def _before(node: Node | None) -> Node | None:
    """Return what a node is a copy of."""
    while node is not None and kind_of(node) in _KEPT:
        node = node.next_functions[0][0]
    return node
