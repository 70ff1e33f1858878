"""Watches losses by hand: along which axis they pick classes of a softmax, and of how many."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.deferred import to_host
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, signed
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**20  # elements that are read
_EXACT, _OFF = 1e-3, 0.1  # of a sum
_SIGMOIDS = {"LogSigmoidBackward", "SigmoidBackward"}
_SOFTMAX = {"SoftmaxBackward", "LogSoftmaxBackward"}
# What is done to probabilities number for number, before a class is picked.
_BETWEEN = {"AddBackward", "ClampBackward", "ClampMinBackward", "CloneBackward", "LogBackward"} | {
    *("MulBackward", "NegBackward", "ToCopyBackward")
}

_PLACES = {*autograd_graph.SAME, "SliceBackward"}  # where they stand, or which of them

# Numbers of one dimension, still where the training is, and which axis they say; None for none.
_Reading = tuple[torch.Tensor, Callable[[list[float]], int | None]]


@dataclass(frozen=True, slots=True)
class _Pick:
    """What may pick or weigh classes of a softmax: told by numbers that nobody waits for."""

    axis: int  # of the softmax
    shape: tuple[int, ...]
    reading: _Reading

    def axes(self, numbers: list[float]) -> str | None:
        """Say which axes these are; "" if they are the same, None where no class is picked."""
        picked = self.reading[1](numbers)
        if picked is None or picked == self.axis:
            return None if picked is None else ""
        return f"axis {self.axis} of {self.shape}, classes along {picked}"


class PickedClasses(Watcher):
    """
    The Probe events "picked" and "twice".

    Losses that pick classes along another axis than the softmax's, and a log_softmax of a softmax,
    or a sigmoid of a sigmoid; the label says which.
    listeners: are told of the classes that are picked, and of the node that they are picked from.
    """

    makes = ("Probe:picked", "Probe:twice")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.listeners: list[Callable[[torch.Tensor, Node], None]] = []
        self._twice = self._looked = 0
        self._source_of_twice = self._kind = ""
        self._steps: list[tuple[list[_Pick], str]] = []  # each with the line that goes backward

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for classes that are picked in the graph of a loss."""
        if loss.grad_fn is None or self.recorder.steps not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        squashed = any(map(_is_of_a_sigmoid, nodes))
        if len(nodes) >= _MOST_NODES or not (squashed or any(map(_is_softmax, nodes))):
            return
        self.looked.add("picked")
        self._looked += 1
        if squashed or any(map(_is_of_a_softmax, nodes)):
            self._twice += 1
            self._source_of_twice = self._source_of_twice or caller()
            self._kind = "sigmoid" if squashed else "softmax"
        with suppress(RuntimeError):  # what was changed since cannot be read
            if picks := [pick for node in nodes for pick in _picks_in(node)]:
                self._steps.append((picks, caller()))
            for node in nodes if self.listeners else ():
                for target in _targets_in(node):
                    told = tuple(self.listeners), target, node.next_functions[0][0]
                    self.recorder.faults.tell(*told)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._twice:
            named = {"label": self._kind, "source": self._source_of_twice}
            yield make_probe("twice", self._twice, self._looked, **named)
        told = [(found, source) for picks, source in self._steps if (found := _read(picks))]
        wrong = [(next(filter(None, found)), source) for found, source in told if any(found)]
        if wrong:
            yield make_probe("picked", len(wrong), len(told), label=wrong[0][0], source=wrong[0][1])


def _read(picks: list[_Pick]) -> list[str]:
    """Return the axes of all that picks classes, read in one transfer."""
    numbers = to_host([pick.reading[0] for pick in picks])
    axes = [pick.axes(own.tolist()) for pick, own in zip(picks, numbers, strict=True)]
    return [each for each in axes if each is not None]


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


def _is_of_a_sigmoid(node: Node) -> bool:
    """Say whether a node is a sigmoid of what comes out of a sigmoid, or the logarithm of one."""
    if autograd_graph.kind_of(node) not in _SIGMOIDS:
        return False
    before = autograd_graph.maker_of(node.next_functions[0][0])
    return before is not None and autograd_graph.kind_of(before) == "SigmoidBackward"


def _picks_in(node: Node) -> Iterator[_Pick]:
    """Yield what a node may pick or weigh of a softmax."""
    reader = _READERS.get(autograd_graph.kind_of(node))
    live = [before for before, _ in node.next_functions if before is not None]
    softmax = _softmax_before(live[0]) if reader is not None and len(live) == 1 else None
    if reader is None or softmax is None:
        return
    made = autograd_graph.saved(softmax, "result")
    if made is None or type(made) is not torch.Tensor or made.is_meta:
        return
    axis = signed(softmax._saved_dim) % max(1, made.dim())  # noqa: SLF001 torch names it so
    if made.dim() < 2 or made.numel() > _LARGEST or made.shape[axis] < 2:
        return
    reading = reader(node, made, axis)
    if reading is not None:
        yield _Pick(axis, tuple(made.shape), reading)


def _targets_in(node: Node) -> Iterator[torch.Tensor]:
    """Yield what a node may pick of a softmax, one for each place, or of some of its places."""
    kind = autograd_graph.kind_of(node)
    if kind not in ("GatherBackward", "IndexBackward"):
        return
    if _softmax_before(node.next_functions[0][0], _BETWEEN | _PLACES) is None:
        return
    if kind == "GatherBackward":
        index = autograd_graph.saved(node, "index")
        if index is not None and index.shape[signed(node._saved_dim)] == 1:  # noqa: SLF001
            yield index.detach()
    else:
        given = [i for i in autograd_graph.saved(node, "indices") or () if i is not None]
        yield from (index.detach() for index in given if index.dtype == torch.int64)


def _softmax_before(node: Node, between: set[str] = _BETWEEN) -> Node | None:
    """Return the softmax whose numbers a node has, one for one; None where there is none."""
    while node is not None and not _is_softmax(node):
        live = [before for before, _ in node.next_functions if before is not None]
        if autograd_graph.kind_of(node) not in between or len(live) != 1:
            return None
        node = live[0]
    return node


def _gathered(node: Node, made: torch.Tensor, axis: int) -> _Reading | None:
    """Tell along which axis one number is gathered for each place along the others."""
    index = autograd_graph.saved(node, "index")
    along = signed(node._saved_dim) % made.dim()  # noqa: SLF001
    if index is None or index.numel() > _LARGEST or index.shape[along] != 1:
        return None
    other = axis if along != axis else next(a for a in range(made.dim()) if a != along)
    # The same places for all classes: whole distributions are gathered, as those of last tokens.
    differs = (index != index.narrow(other, 0, 1)).any().reshape(1)
    return differs, lambda told: along if told[0] else None


def _indexed(node: Node, made: torch.Tensor, axis: int) -> _Reading | None:
    """
    Tell along which axis classes are picked, where all places of one other are run through.

    Of more than two axes that of the softmax is one of both: else whole distributions are picked,
    as those of the actions that were taken.
    """
    kept = autograd_graph.saved(node, "indices") or ()
    indices = [*kept, *[None] * made.dim()][: made.dim()]
    given = [place for place, index in enumerate(indices) if index is not None]
    if len(given) != 2 or any(indices[p].dim() != 1 for p in given):
        return None
    if made.dim() > 2 and axis not in given:
        return None
    if indices[given[0]].device != indices[given[1]].device:
        return None
    whole = torch.stack([runs(indices[p], made.shape[p]) for p in given])
    return whole, lambda told: given[told.index(0)] if sum(told) == 1 else None


def runs(index: torch.Tensor, places: int) -> torch.Tensor:
    """Say whether an index runs through all places in order."""
    if len(index) != places:
        return torch.zeros((), dtype=torch.bool, device=index.device)
    return (index == torch.arange(places, device=index.device)).all()


def _weighed(node: Node, made: torch.Tensor, axis: int) -> _Reading | None:
    """Tell along which axis constants sum to one that weigh a distribution, if along one."""
    for name in ("self", "other"):
        weights = autograd_graph.saved(node, name)
        if weights is None or weights.shape != made.shape or not weights.is_floating_point():
            continue
        square = made.dim() == 2 and made.shape[0] == made.shape[1]  # pairs are read both ways
        if weights.requires_grad or square:
            return None
        off = [(weights.sum(a) - 1).abs().max() for a in range(made.dim())]
        numbers = torch.stack([(weights < 0).any().to(off[0]), *off])
        # What reads the numbers lives to the end, and is not to hold the softmax itself.
        return numbers, partial(_axis_of_weights, made.shape, axis)
    return None


def _axis_of_weights(shape: torch.Size, axis: int, told: list[float]) -> int | None:
    """Return the axis along which weights sum to one, of how far their sums are off each."""
    negative, *off = told
    exact = [a for a in range(len(shape)) if off[a] <= _EXACT and shape[a] > 1]
    if negative or len(exact) != 1:
        return None
    return exact[0] if exact[0] == axis or off[axis] > _OFF else None


_READERS = {"GatherBackward": _gathered, "IndexBackward": _indexed, "MulBackward": _weighed}
