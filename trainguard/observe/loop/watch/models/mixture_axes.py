"""Finds mixtures in the graph of a loss: along which axis their weights sum to one, and of what."""

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
    for side, used, rank in _find_summands(nodes):
        if kind_of(side) == "LogSoftmaxBackward":
            own = signed(autograd_graph.saved(side, "dim"))
            yield own % rank - rank, used % rank - rank


def find_added_probabilities(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield each softmax that is added to something as its logarithm would be, in a logsumexp."""
    for side, used, rank in _find_summands(nodes):
        if kind_of(side) == "SoftmaxBackward":
            own = signed(autograd_graph.saved(side, "dim"))
            if own % rank == used % rank:
                yield side


def _find_summands(nodes: Iterable[Node]) -> Iterator[tuple[Node, int, int]]:
    """Yield what is added up, equally large, in a logsumexp; its axis; and how many there are."""
    for node in nodes:
        if kind_of(node) != "LogsumexpBackward":
            continue
        used = [signed(each) for each in node._saved_dim]  # noqa: SLF001 torch names it so
        added = _before(node.next_functions[0][0])
        if added is None:
            continue
        shape = autograd_graph.shape_made(added)
        sides = autograd_graph.live_inputs(added) if kind_of(added) in _SUMS else []
        alike = all(autograd_graph.shape_made(side) == shape for side in sides)
        for side in map(_before, sides) if len(used) == 1 and shape and alike else ():
            if side is not None:
                yield side, used[0], len(shape)


def _before(node: Node | None) -> Node | None:
    """Return what a node is a copy of."""
    while node is not None and kind_of(node) in _KEPT:
        node = node.next_functions[0][0]
    return node
