"""Watches views in the graph of a loss: shapes of a permutation that move no numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.gradients.term_gradients import TermGradients
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller
from trainguard.observe.tools.written_shapes import exchanges_named_axes

_STEPS = {0, 1, 2, 4, 8}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**20  # elements of an input that is compared
_THROUGH = 12  # nodes between a view and the layer that made its numbers
_CONVOLUTIONS = {"ConvolutionBackward", "MkldnnConvolutionBackward", "SlowConv3DBackward"}
_PRODUCTS = {"AddmmBackward", "MmBackward"}
_LAYERS = _CONVOLUTIONS | _PRODUCTS | {"BmmBackward", "BaddbmmBackward"}
_OF_CHANNELS = _CONVOLUTIONS | {"NativeBatchNormBackward", "CudnnBatchNormBackward"}
_RECURRENT = {"MkldnnRnnLayerBackward", "CudnnRnnBackward"}
_TIME_FIRST = _RECURRENT | {"CtcLossBackward"}
_SAVED = {"AddmmBackward": "mat1", "MmBackward": "self"}
_GIVEN = dict.fromkeys(_OF_CHANNELS | _RECURRENT, "input") | _SAVED
# What is joined, padded or cut may be viewed on purpose in a shape that shears it.
_ASSEMBLED = ("Cat", "Stack", "ConstantPad", "Slice", "AsStrided", "Index", "Unfold", "Accumulate")
_REDUCTIONS = ("Mean", "Sum", "Max", "Amax", "Amin", "Min", "Var", "Std", "Norm", "LinalgVector")

Shape = tuple[int, ...]


@dataclass(slots=True)
class _Reshape:
    """A view of one shape in another, and in how many of the steps looked at it was seen."""

    source: str
    steps: int = 0


class ReshapedAxes(Watcher):
    """
    The Probe event "reshaped": views whose shape is that of exchanged axes.

    A view goes by the order in memory. What a convolution made has its channels in axis 1: where
    a view leaves some of them for the last axis, there are neighbours of one channel instead. It is
    "reshaped in part" where these are parts of the channels and later layers learn from them.
    """

    makes = ("Probe:reshaped", "Probe:reshaped in part")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[tuple[str, str], _Reshape] = {}  # by the kind of probe, and its label
        self._steps = 0
        self._whole: list[torch.Tensor] = []  # what the model was given, until it has learned of it

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep inputs that may be reshaped in the model, in the steps that are looked at."""
        looks = forward.gradients and self.recorder.age in _STEPS
        self._whole = [*filter(_may_be_reshaped, self.recorder.given)] if looks else []

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the views that a loss is made of."""
        whole, self._whole = self._whole, []
        if loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        views = [node for node in nodes if autograd_graph.kind_of(node) in autograd_graph.VIEWS]
        given: list[str] = []
        if not self.recorder.watcher(TermGradients).noticed:  # to look is to unpack what is saved
            saved = [
                (node, matrix)
                for node in nodes
                if (matrix := autograd_graph.given_to(node, _GIVEN)) is not None
            ]
            given = [label for one in saved if (label := _input_reshaped(*one)) is not None]
            written = (
                any(map(exchanges_named_axes, self.recorder.names.roots())) if whole else False
            )
            given += [
                label
                for _, matrix in saved
                for one in whole
                if (label := _shear(matrix, one, written))
            ]
        if len(nodes) >= _MOST_NODES or not (views or given):
            return
        self.looked.add("reshaped")
        self._steps += 1
        readers = autograd_graph.find_readers(nodes)
        keys = {key for view in views for key in self._look_at(view, readers)}
        for key in keys | {("reshaped", label) for label in given if label}:
            self._found.setdefault(key, _Reshape(caller())).steps += 1

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for (probe, label), found in self._found.items():
            yield make_probe(probe, found.steps, self._steps, label=label, source=found.source)

    def _look_at(self, view: Node, readers: dict[Node, list[Node]]) -> Iterator[tuple[str, str]]:
        """Yield the probe and its label for a view that exchanges axes without moving numbers."""
        before, after = autograd_graph.sizes(view), autograd_graph.shape_made(view)
        if not before or not after or prod(before) != prod(after) or not prod(before):
            return
        if _swaps_samples(before, after, readers.get(view, ())):
            yield "reshaped", "- (N,T,K) (T,N,K)"
            return
        maker = _maker(view, len(before))
        kind = autograd_graph.kind_of(maker) if maker is not None else ""
        if maker is None or kind.startswith(_ASSEMBLED):
            return
        consumers = [autograd_graph.kind_of(node) for node in readers.get(view, ())]
        reduced = any(name.startswith(_REDUCTIONS) for name in consumers)
        if kind in _CONVOLUTIONS:
            wrong = not reduced and leaves_channels(before, after)
        else:
            into = any(name in _CONVOLUTIONS for name in consumers)
            wrong = exchanges(before, after, certain=into)
        if wrong:
            in_part = kind in _CONVOLUTIONS and after[-1] < before[1]
            probe = (
                "reshaped in part" if in_part and _is_learned_from(view, readers) else "reshaped"
            )
            yield probe, f"{self._name(maker)} {_describe(before, after)}"

    def _name(self, maker: Node) -> str:
        """Return the name of the parameter of the layer that made the numbers, or nothing."""
        for before, _ in maker.next_functions:
            while before is not None and autograd_graph.kind_of(before) in ("TBackward",):
                before = before.next_functions[0][0]
            variable = getattr(before, "variable", None)
            if variable is not None and variable.dim() > 1:
                return self.recorder.names.parameter(variable)
        return "-"


def _swaps_samples(before: Shape, after: Shape, consumers: Iterable[Node]) -> bool:
    """Say whether (N, T, K) is viewed as (T, N, K) for a loss or layer that takes time first."""
    exchanged = len(before) == 3 and after == (before[1], before[0], before[2])
    first = any(autograd_graph.kind_of(node) in _TIME_FIRST for node in consumers)
    return exchanged and first and before[0] != before[1] and min(before) > 1


def leaves_channels(before: Shape, after: Shape) -> bool:
    """Say whether channels of (N, C, ...) are meant by the last axis of a view, and not there."""
    batch, channels = before[0], before[1]
    places = [size for size in before[2:] if size > 1]
    kept = [size for size in after if size > 1]
    if len(kept) < 2 or len(after) > 3 or channels < 2 or not places:
        return False
    if after[0] != batch and (len(after) > 2 or after[0] % batch):
        return False
    last, rows = kept[-1], prod(places)
    if last in [prod(places[place:]) for place in range(len(places))]:
        return False  # places, or whole maps of channels
    groups = last % rows == 0 and channels % (last // rows) == 0
    parts = last < channels and channels % last == 0 and not groups
    with_places = len(places) > 1 and last in {channels * size for size in places}
    return last == channels != rows or parts or (with_places and last % rows != 0)


def exchanges(before: Shape, after: Shape, *, certain: bool) -> bool:
    """
    Say whether a view of (N, ...) has the sizes of exchanged axes, and not in this order.

    certain: whether what is done with it tells that they are meant to be.
    """
    if not before or not after or before[0] != after[0]:
        return False
    if prod(before[1:]) != prod(after[1:]):
        return False  # views of one sample, say, became samples
    own = [size for size in before[1:] if size > 1]
    new = [size for size in after[1:] if size > 1]
    if len(own) == 3 and len(new) == 2:  # heads joined before they are moved behind the places
        return own[1] == new[0] and _are_apart(own[0], own[1])
    if len(own) == len(new) == 3 and new == [own[1], own[0], own[2]] != own:
        return True  # heads that were split off, before the places: all sizes tell it
    if len(own) == len(new) == 3 and certain:  # pictures whose channels come last
        return new == [own[2], own[0], own[1]] != own
    if len(own) != 2 or own[0] == own[1]:
        return False
    places, features = own
    if len(new) == 2:
        return new == [features, places] and (certain or max(own) % min(own) != 0)
    heads = len(new) == 3 and new[1] == places and new[0] * new[2] == features
    maps = len(new) == 3 and new[0] == features and new[1] * new[2] == places
    return (heads and _are_apart(new[0], places)) or (maps and _are_apart(features, places))


def _may_be_reshaped(given: torch.Tensor) -> bool:
    """Say whether an input of a model has two axes beside that of the samples, and few numbers."""
    plain = given.is_cpu and given.is_floating_point() and not given.requires_grad
    able = plain and has_rows(given) and given.dim() == 3
    return able and given.numel() <= _LARGEST


def _shear(given: torch.Tensor, whole: torch.Tensor, written: bool) -> str:
    """
    Return the label of (N, D, T) that a layer reads as (N, T, D) or (T, N, D), or nothing.

    written: whether the code says so; where T is a multiple of D, pieces of D may be meant else.
    """
    before = tuple(whole.shape)
    after = (before[0], before[2], before[1])
    if given.dtype != whole.dtype or not exchanges(before, after, certain=written):
        return ""
    if given.shape[-1] != before[1] or given.numel() != whole.numel():
        return ""
    rows, sheared = given.reshape(-1, before[1]), whole.reshape(after)
    orders = (sheared, sheared.transpose(0, 1))
    found = any(torch.equal(rows, order.reshape(-1, before[1])) for order in orders)
    return f"input {_describe(before, after)}" if found else ""


def _input_reshaped(node: Node, given: torch.Tensor) -> str | None:
    """
    Return the label of an input that a layer was given in the shape of exchanged axes.

    Empty where it was viewed in another way, and None where a layer has no such input.
    """
    kind = autograd_graph.kind_of(node)
    whole = given._base  # noqa: SLF001
    if whole is None or whole.dim() < 3:
        return None
    if not (given.is_contiguous() and whole.is_contiguous()):
        return None
    before, after = tuple(whole.shape), tuple(given.shape)
    if kind in _RECURRENT:  # (T, N, D) of (N, T, D)
        wrong = after == (before[1], before[0], *before[2:]) and before[0] != before[1]
        wrong &= min(before) > 1  # where one of them is 1, both orders are the same
    elif kind in _SAVED:  # rows of a matrix
        after = (before[0], before[2], before[1])
        wrong = given.shape[1] == before[1] and not given.shape[0] % before[2]
        wrong = wrong and len(before) == 3 and exchanges(before, after, certain=False)
    else:  # of a part of all samples too
        wrong = exchanges((0, *before[1:]), (0, *after[1:]), certain=True)
    return f"input {_describe(before, after)}" if wrong else ""


def _are_apart(first: int, second: int) -> bool:
    """Say whether the first of two axes is no multiple of the second, which groups of it are."""
    return first % second != 0


def _describe(before: Shape, after: Shape) -> str:
    """Return the shapes of a view, and of what it is a view of, for batches of any size."""
    return f"{autograd_graph.without_batch(before)} {autograd_graph.without_batch(after)}"


def _is_learned_from(view: Node, readers: dict[Node, list[Node]]) -> bool:
    """Say whether a later layer makes something of a view, and so may have learned its order."""
    waiting, seen = [*readers.get(view, ())], set[Node]()
    while waiting:
        node = waiting.pop()
        if autograd_graph.kind_of(node) in _LAYERS:
            return True
        if node not in seen:
            seen.add(node)
            waiting += readers.get(node, ())
    return False


def _maker(view: Node, rank: int) -> Node | None:
    """Return the node that made the numbers of a view, through what keeps each in its place."""
    node = view.next_functions[0][0] if view.next_functions else None
    for _ in range(_THROUGH):
        if node is None:
            return None
        kind = autograd_graph.kind_of(node)
        if kind in _CONVOLUTIONS | _PRODUCTS or kind.startswith(_ASSEMBLED):
            return node
        if kind in autograd_graph.VIEWS and rank != len(autograd_graph.sizes(node)):
            return _of_linear(node)
        if kind in ("PermuteBackward", "TransposeBackward") or not _is_pointwise(kind):
            return node
        node = node.next_functions[0][0]
    return node


def _of_linear(view: Node) -> Node:
    """Return the product of matrices that a view brings in shape, or else the view."""
    before = view.next_functions[0][0]
    is_product = before is not None and autograd_graph.kind_of(before) in _PRODUCTS
    return before if is_product else view


def _is_pointwise(kind: str) -> bool:
    """Say whether a node keeps each number in its place, and has one input that matters."""
    pointwise = (
        *("Relu", "Leaky", "Elu", "Gelu", "Silu", "Sigmoid", "Tanh", "Softplus", "Hardswish"),
        *("Clone", "ToCopy", "Mul", "Div", "Add", "Exp", "NativeDropout", "NativeBatchNorm"),
        *("CudnnBatchNorm", "NativeGroupNorm", "NativeLayerNorm", "MaxPool", "AvgPool"),
        *("AdaptiveAvgPool", "MkldnnAdaptiveAvg", "Alias", "UnsafeView", "Hardtanh", "Mish"),
        *("AdaptiveMaxPool", "MkldnnMaxPool", "Clamp", "PreluKernel", "Celu", "Selu"),
    )
    return kind.startswith(pointwise)
