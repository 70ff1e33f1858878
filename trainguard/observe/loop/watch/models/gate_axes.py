"""Watches weights of the parts of each sample, as of experts: over what they sum to one."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved, signed
from trainguard.observe.loop.watch.models.attention_scales import SOFTMAX
from trainguard.observe.loop.watch.models.function_lines import find_function_line
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8}  # that are looked at
_MOST_NODES = 20000
_LEAST = 4  # samples
_THROUGH = 6  # operations between the weights and what they weigh
_CHOICES = {"GatherBackward", "MaxBackward", "TopkBackward"}
_COPIES = {"AliasBackward", "CloneBackward", "MulBackward", "NativeDropoutBackward"}


class _GateWeights(NamedTuple):
    """Where weights (N, K) are on their way: their axes of samples and parts, from the last one."""

    node: Node
    rank: int = 2
    rows: int = -2
    parts: int = -1


class GateAxes(Watcher):
    """
    The Probe event "gate axis": weights of parts that sum to one over the samples of a batch.

    They are a softmax of (N, K), in a model that gives N rows for N rows, and are chosen or summed
    along K. measured: steps with such weights over N; reference: steps with any; label: the shape.
    """

    makes = ("Probe:gate axis",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._rows = 0  # of the latest pass that learns
        self._steps = self._wrong = 0
        self._label = self._source = ""

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember of how many samples a pass has a row, before and after."""
        self._rows = 0
        if forward.gradients and self.recorder.age in _STEPS:
            made = next((each for each in tensors_in(output) if each.dim()), None)
            given = [each for each in self.recorder.given if each.dim()]
            # A nested tensor has no length, and has a size.
            rows = {each.size(0) for each in given} if made is not None else set()
            self._rows = made.size(0) if made is not None and rows == {made.size(0)} else 0

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for such weights in the graph of a loss."""
        rows, self._rows = self._rows, 0
        if rows < _LEAST or loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        weights = [node for node in nodes if kind_of(node) in SOFTMAX and _parts_of(node, rows)]
        readers = autograd_graph.find_readers(nodes) if weights else {}
        used = [node for node in weights if _weigh_parts(_GateWeights(node), readers, _THROUGH)]
        wrong = [node for node in used if not signed(saved(node, "dim")) % 2]
        self._steps += bool(used)
        self._wrong += bool(wrong)
        if wrong and not self._label:
            self._label = f"({rows},{_parts_of(wrong[0], rows)})"
            self._source = find_function_line(self.recorder, "softmax") or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self.looked |= {"gate axis"} if self._steps else set()
        if self._wrong:
            told = {"label": self._label, "source": self._source}
            yield make_probe("gate axis", self._wrong, self._steps, **told)


def _parts_of(softmax: Node, rows: int) -> int:
    """Return of how many parts a softmax has a number for each of so many samples; 0 of none."""
    made = saved(softmax, "result")
    if made is None or made.dim() != 2 or len(made) != rows or made.shape[1] in (1, rows):
        return 0
    return int(made.shape[1])


def _weigh_parts(weights: _GateWeights, readers: dict[Node, list[Node]], left: int) -> bool:
    """Say whether weights are chosen, or summed, along the axis of the parts of a sample."""
    found = [(each, _advance(weights, each)) for each in readers.get(weights.node, ())]
    if any(_is_along_parts(weights, reader) for reader, _ in found):
        return True
    further = [moved for _, moved in found if moved is not None] if left else []
    return any(_weigh_parts(moved, readers, left - 1) for moved in further)


def _advance(weights: _GateWeights, reader: Node) -> _GateWeights | None:
    """Return where the axes are behind an operation that keeps each weight; None behind others."""
    kind = kind_of(reader)
    if kind in _COPIES:
        rank = max(weights.rank, len(autograd_graph.shape_made(reader)))
        return weights._replace(node=reader, rank=rank)
    if kind == "UnsqueezeBackward":
        place = signed(saved(reader, "dim")) % (weights.rank + 1)
        behind = [place > weights.rank + axis for axis in (weights.rows, weights.parts)]
        rows, parts = weights.rows - behind[0], weights.parts - behind[1]
        return _GateWeights(reader, weights.rank + 1, rows, parts)
    if kind == "ExpandBackward":
        return weights._replace(node=reader)
    return None


def _is_along_parts(weights: _GateWeights, reader: Node) -> bool:
    """Say whether an operation takes one of the parts of each sample, or their sum."""
    kind, dim = kind_of(reader), saved(reader, "dim")
    if kind == "BmmBackward":
        place = 0 if reader.next_functions[0][0] is weights.node else 1
        return weights.rank == 3 and weights.parts == -1 - place
    if kind == "SumBackward" and isinstance(dim, tuple):
        rank = len(autograd_graph.sizes(reader))
        axes = {signed(each) % rank - rank for each in dim} if rank else set()
        return weights.parts in axes and weights.rows not in axes
    if kind in _CHOICES and dim is not None:
        return signed(dim) % weights.rank - weights.rank == weights.parts
    return False
