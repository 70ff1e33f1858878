"""Watches losses by hand: along which axis they pick classes of a softmax, and of how many."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, signed
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**20  # elements that are read
_EXACT, _OFF = 1e-3, 0.1  # of a sum
_SOFTMAX = {"SoftmaxBackward", "LogSoftmaxBackward"}
# What is done to probabilities number for number, before a class is picked.
_BETWEEN = {"AddBackward", "ClampBackward", "ClampMinBackward", "CloneBackward", "LogBackward"} | {
    *("MulBackward", "NegBackward", "ToCopyBackward")
}


class PickedClasses(Watcher):
    """
    The Probe events "picked" and "twice".

    Losses that pick classes along another axis than the softmax's, and a log_softmax of a softmax.
    """

    makes = ("Probe:picked", "Probe:twice")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._seen = self._found = self._twice = self._looked = 0
        self._axes = self._source = self._source_of_twice = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for classes that are picked in the graph of a loss."""
        if loss.grad_fn is None or self.recorder.steps not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        if len(nodes) >= _MOST_NODES or not any(map(_is_softmax, nodes)):
            return
        self.looked.add("picked")
        self._looked += 1
        if any(map(_is_of_a_softmax, nodes)):
            self._twice += 1
            self._source_of_twice = self._source_of_twice or caller()
        with suppress(RuntimeError):  # what was changed since cannot be read
            picks = [pick for node in nodes for pick in _picks_in(node)]
            if picks:
                self._seen += 1
                wrong = [axes for axes in picks if axes]
                self._found += bool(wrong)
                if wrong and not self._source:
                    self._axes, self._source = wrong[0], caller()

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._twice:
            yield Probe(
                probe="twice",
                measured=float(self._twice),
                reference=float(self._looked),
                source=self._source_of_twice,
            )
        if self._found:
            yield Probe(
                probe="picked",
                measured=float(self._found),
                reference=float(self._seen),
                label=self._axes,
                source=self._source,
            )


def _is_softmax(node: Node) -> bool:
    """Say whether a node is one of a softmax, or of its logarithm."""
    return autograd_graph.kind_of(node) in _SOFTMAX


def _is_of_a_softmax(node: Node) -> bool:
    """Say whether a node is a log_softmax of what comes out of a softmax along the same axis."""
    if autograd_graph.kind_of(node) != "LogSoftmaxBackward":
        return False
    before = node.next_functions[0][0]
    if before is None or autograd_graph.kind_of(before) != "SoftmaxBackward":
        return False
    return bool(before._saved_dim == node._saved_dim)  # noqa: SLF001 torch names it so


def _picks_in(node: Node) -> Iterator[str]:
    """Yield for what picks or weighs classes of a softmax which axes these are; "" if the same."""
    reader = _READERS.get(autograd_graph.kind_of(node))
    live = [before for before, _ in node.next_functions if before is not None]
    softmax = _softmax_before(live[0]) if reader is not None and len(live) == 1 else None
    if reader is None or softmax is None:
        return
    made = autograd_graph.saved(softmax, "result")
    if made is None:
        return
    axis = signed(softmax._saved_dim) % max(1, made.dim())  # noqa: SLF001 torch names it so
    if not made.is_cpu or made.dim() < 2 or made.numel() > _LARGEST or made.shape[axis] < 2:
        return
    picked = reader(node, made, axis)
    if picked is not None:
        yield (
            "" if picked == axis else f"axis {axis} of {tuple(made.shape)}, classes along {picked}"
        )


def _softmax_before(node: Node) -> Node | None:
    """Return the softmax whose numbers a node has, one for one; None where there is none."""
    while node is not None and not _is_softmax(node):
        live = [before for before, _ in node.next_functions if before is not None]
        if autograd_graph.kind_of(node) not in _BETWEEN or len(live) != 1:
            return None
        node = live[0]
    return node


def _gathered(node: Node, made: torch.Tensor, axis: int) -> int | None:
    """Return along which axis one number is gathered for each place along the others."""
    index = autograd_graph.saved(node, "index")
    along = signed(node._saved_dim) % made.dim()  # noqa: SLF001
    if index is None or index.numel() > _LARGEST:
        return None
    other = axis if along != axis else next(a for a in range(made.dim()) if a != along)
    first = index.narrow(other, 0, 1)
    # The same places for all classes: whole distributions are gathered, as those of last tokens.
    return along if index.shape[along] == 1 and bool((index != first).any()) else None


def _indexed(node: Node, made: torch.Tensor, _: int) -> int | None:
    """Return along which axis classes are picked, where all places of one other are run through."""
    kept = autograd_graph.saved(node, "indices") or ()
    indices = [*kept, *[None] * made.dim()][: made.dim()]
    given = [place for place, index in enumerate(indices) if index is not None]
    if len(given) != 2 or any(indices[p].dim() != 1 or not indices[p].is_cpu for p in given):
        return None
    runs = [torch.equal(indices[p], torch.arange(made.shape[p])) for p in given]
    return given[runs.index(False)] if sum(runs) == 1 else None


def _weighed(node: Node, made: torch.Tensor, axis: int) -> int | None:
    """Return along which axis constants sum to one that weigh a distribution, if along one."""
    for name in ("self", "other"):
        weights = autograd_graph.saved(node, name)
        if weights is None or weights.shape != made.shape or not weights.is_floating_point():
            continue
        square = made.dim() == 2 and made.shape[0] == made.shape[1]  # pairs are read both ways
        if weights.requires_grad or square or bool((weights < 0).any()):
            return None
        off = [float((weights.sum(a) - 1).abs().max()) for a in range(made.dim())]
        exact = [a for a in range(made.dim()) if off[a] <= _EXACT and made.shape[a] > 1]
        return exact[0] if len(exact) == 1 and (exact[0] == axis or off[axis] > _OFF) else None
    return None


_READERS = {"GatherBackward": _gathered, "IndexBackward": _indexed, "MulBackward": _weighed}
