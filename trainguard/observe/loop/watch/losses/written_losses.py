"""Reads losses that are written by hand: `((model(x) - y) ** 2).mean()`, of which function."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.picked_classes import runs
from trainguard.observe.tools.local_values import has_memory, has_rows, is_transforming
from trainguard.observe.tools.owners import named_tensors

_LARGEST = 2**20  # elements of an output, which lives as long as its graph does
_OUTPUTS = 4  # of a pass
_BETWEEN = 8  # operations that change the shape of numbers, and not their order
_ORDERED = autograd_graph.SAME - {"PermuteBackward", "TransposeBackward"}
_OUTPUT, _PASS = "trainguard output", "trainguard pass"
Pass = tuple[str, int]  # the module that was called, and when


@dataclass(frozen=True, slots=True)
class WrittenLoss:
    """
    A loss by hand: what function of torch it is, and what that would have been given.

    node: of the mean or sum. value: what the function would have returned.
    """

    function: str
    reduction: str
    node: Node
    scores: torch.Tensor
    target: torch.Tensor
    value: torch.Tensor


def keep_outputs(output: Any, origin: Pass = ("", 0)) -> None:
    """Leave the numbers that a pass returned with their graph, which they live and die with."""
    if is_transforming():
        return
    for tensor in islice(tensors_in(output), _OUTPUTS):
        small = tensor.is_floating_point() and 0 < tensor.numel() <= _LARGEST
        if small and type(tensor) is torch.Tensor and tensor.grad_fn is not None:
            node: Node = tensor.grad_fn
            node.metadata.setdefault(_PASS, origin)
            kept = node.metadata.setdefault(_OUTPUT, {})
            kept[tensor.output_nr] = tensor.detach(), tensor._version  # noqa: SLF001


def pass_of(node: Node) -> Pass | None:
    """Return the pass that returned what a node made, None where it is none's."""
    found: Pass | None = node.metadata.get(_PASS)
    return found


def read_loss(loss: torch.Tensor) -> WrittenLoss | None:
    """Return what a loss is a constant multiple of; None where that is no known function."""
    found = autograd_graph.find_reduction(loss) if loss.numel() == 1 else None
    if found is None:
        return None
    node, factor = found
    reduction = "mean" if autograd_graph.kind_of(node) == "MeanBackward" else "sum"
    inner = _before(node)
    while inner is not None and reduction == "mean" and autograd_graph.elements(inner):
        # The mean of means, or of sums, over the other axes.
        if autograd_graph.kind_of(inner) == "SumBackward":
            made = torch.Size(autograd_graph.shape_made(inner)).numel()
            factor *= autograd_graph.elements(inner) / max(1, made)
        elif autograd_graph.kind_of(inner) != "MeanBackward":
            break
        inner = _before(inner)
    if inner is None or not factor:
        return None
    for read in (_read_distance, _read_classes):
        if (parts := read(inner, factor)) is not None:
            function, scores, target = parts
            value = loss if factor == 1 else loss / abs(factor)
            return WrittenLoss(function, reduction, node, scores, target, value)
    return None


def _read_distance(node: Node, factor: float) -> tuple[str, torch.Tensor, torch.Tensor] | None:
    """Return the function, output and target of squares or sizes of what both are apart."""
    kind = autograd_graph.kind_of(node)
    squared = kind == "PowBackward" and _exponent(node) == 2
    squared |= autograd_graph.is_square(node)
    if factor < 0 or not (squared or kind == "AbsBackward"):
        return None
    apart = autograd_graph.saved(node, "self")
    between = _before(node)
    if apart is None or between is None or autograd_graph.kind_of(between) != "SubBackward":
        return None
    edges = between.next_functions
    live = [place for place, (before, _) in enumerate(edges) if before is not None]
    output = output_at(*edges[live[0]]) if len(live) == 1 else None
    if output is None or output.numel() != apart.numel() or between._saved_alpha != 1:  # noqa: SLF001
        return None
    apart = apart.detach()
    scores = output.reshape(apart.shape)
    target = _named_target(scores, apart if live[0] == 0 else -apart)
    return "mse_loss" if squared else "l1_loss", scores, target


def _exponent(node: Node) -> float | None:
    """Return the one number that a power is taken to, None where there are several."""
    kept = autograd_graph.saved(node, "exponent")
    return float(kept) if isinstance(kept, int | float) else None


def _named_target(scores: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    """Return the variable that scores are that far apart from; what it must be if there is none."""
    if scores.is_cpu:
        for _, _, each in named_tensors():
            fits = each.shape == scores.shape and each.dtype == scores.dtype and has_rows(each)
            if fits and not each.requires_grad and each.is_cpu and _is_apart(scores, each, apart):
                return each
    return scores - apart


def _is_apart(scores: torch.Tensor, target: torch.Tensor, apart: torch.Tensor) -> bool:
    """Say whether scores are exactly that far apart from a target; one number tells most others."""
    first = float(scores.flatten()[0] - target.flatten()[0])
    return first == float(apart.flatten()[0]) and torch.equal(scores - target, apart)


def _read_classes(node: Node, factor: float) -> tuple[str, torch.Tensor, torch.Tensor] | None:
    """Return the function, logarithms and classes of picked logarithms of probabilities."""
    while node is not None and autograd_graph.kind_of(node) in {*_ORDERED, "NegBackward"}:
        factor *= -1 if autograd_graph.kind_of(node) == "NegBackward" else 1
        node = _before(node, ordered=False)
    if node is None or factor > 0:
        return None
    softmax = _before(node, ordered=False)
    if softmax is None or autograd_graph.kind_of(softmax) != "LogSoftmaxBackward":
        return None
    made = autograd_graph.saved(softmax, "result")
    if made is None or made.dim() < 2:
        return None
    axis = autograd_graph.signed(softmax._saved_dim) % made.dim()  # noqa: SLF001
    for target in _picked(node, made, axis):
        return "nll_loss", made.detach().movedim(axis, 1), target.detach()
    return None


def _picked(node: Node, made: torch.Tensor, axis: int) -> Iterator[torch.Tensor]:
    """Yield the classes that are picked along an axis, one at each of all the other places."""
    if autograd_graph.kind_of(node) == "GatherBackward":
        index = autograd_graph.saved(node, "index")
        along = autograd_graph.signed(node._saved_dim) % made.dim()  # noqa: SLF001
        if index is not None and along == axis and index.shape[axis] == 1:
            target = index.squeeze(axis)
            if target.shape == made.shape[:axis] + made.shape[axis + 1 :]:
                yield target
    elif autograd_graph.kind_of(node) == "IndexBackward" and made.dim() == 2 and axis == 1:
        indices = autograd_graph.saved(node, "indices") or ()
        pair = [index for index in indices if index is not None]
        if len(pair) == 2 and all(i.shape == made.shape[:1] for i in pair):
            yield from [pair[1]] if pair[0].is_cpu and runs(pair[0], len(made)) else []


def _before(node: Node, *, ordered: bool = True) -> Node | None:
    """Return the one node that learns before another, seen through what keeps numbers in order."""
    for _ in range(_BETWEEN):
        live = {before for before, _ in node.next_functions if before is not None}
        if len(live) != 1:
            return None
        (node,) = live
        if not ordered or autograd_graph.kind_of(node) not in _ORDERED:
            return node
    return None


def output_at(node: Node, place: int) -> torch.Tensor | None:
    """Return the numbers of a pass that a node has, in their order; None where it has others."""
    for _ in range(_BETWEEN):
        kept = node.metadata.get(_OUTPUT, {}).get(place)
        if kept is not None:
            same = kept[0]._version == kept[1] and has_memory(kept[0])  # noqa: SLF001
            return kept[0] if same else None
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        if len(edges) != 1 or autograd_graph.kind_of(node) not in _ORDERED | autograd_graph.PARTS:
            return None
        node, place = edges[0]
    return None
