"""What the errors below a loss were for each row of a batch, by what their operations keep."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import SUMS, Edge
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved, signed

_DEEP = 12  # operations from a number of a batch to its errors
_NONE, _MEAN = 0, 1  # how torch names the reductions of loss functions
_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "MeanBackward": torch.mean,
    "SumBackward": torch.sum,
}
_OF_ARGUMENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "AbsBackward": torch.abs,
    "Log10Backward": torch.log10,
    "LogBackward": torch.log,
}
_OF_RESULT = {"ExpBackward", "LinalgVectorNormBackward", "NormBackward", "SqrtBackward"}
# Those of torch.nn.functional are listened to, and a call of ours is none of the user's.
_LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "BinaryCrossEntropyWithLogitsBackward": torch.ops.aten.binary_cross_entropy_with_logits,
    "HuberLossBackward": torch.ops.aten.huber_loss,
    "MseLossBackward": torch.ops.aten.mse_loss,
    "SmoothL1LossBackward": torch.ops.aten.smooth_l1_loss,
}
LOSSES = set(_LOSSES)
_PIECES = {"SplitBackward", "UnbindBackward"}
PICKS = autograd_graph.PARTS | _PIECES | {"FlipBackward", "IndexBackward"}  # of the same numbers


def row_errors(edge: Edge, rows: int, deep: int = _DEEP) -> torch.Tensor | None:
    """
    Return for each row (N, ...) what a number is the mean of over the rows of a batch.

    But for constants that are added, and factors that all rows have. None where that is not known.
    """
    node, kind = edge[0], kind_of(edge[0])
    if deep <= 0:
        return None
    if kind in _LOSSES and saved(node, "reduction") != _NONE:
        each = _by_loss(node)
        if each is None or len(each) != rows:
            return None
        each = each.flatten(1)
        return each.mean(1) if saved(node, "reduction") == _MEAN else each.sum(1) * rows
    if kind in _REDUCTIONS:
        return _reduce(node, rows, deep)
    if kind in autograd_graph.SAME:
        one = torch.Size(autograd_graph.shape_made(node)).numel() == 1
        return row_errors(node.next_functions[0], rows, deep - 1) if one else None
    return _combine(node, lambda before: row_errors(before, rows, deep - 1))


def _reduce(node: Node, rows: int, deep: int) -> torch.Tensor | None:
    """Return the rows of what is reduced over them, as it is over its other axes."""
    below, reduce = node.next_functions[0], _REDUCTIONS[kind_of(node)]
    sizes = autograd_graph.sizes(node)
    axes = [axis % len(sizes) for axis in _axes(node)] if sizes else []
    axes = axes or list(range(len(sizes)))
    if saved(node, "keepdim"):
        return None
    each = elements(below, deep - 1) if sizes[:1] == (rows,) and 0 in axes else None
    if each is not None and reduce is torch.sum:
        each = each * rows  # whose mean is what was summed up
    if each is None:
        each = row_errors(below, rows, deep - 1)
        axes = [0, *(axis + 1 for axis in axes)]
    axes = [axis for axis in axes if axis and each is not None and axis < each.dim()]
    return each if each is None or not axes else reduce(each, axes)


def _axes(node: Node) -> list[int]:
    """Return the axes that a reduction goes over, nothing where it goes over all."""
    kept: Any = saved(node, "dim")
    return [] if kept is None else [signed(axis) for axis in kept]


def elements(edge: Edge, deep: int = _DEEP) -> torch.Tensor | None:
    """Return the numbers that a node made, but for constants that are added, or None."""
    node, kind = edge[0], kind_of(edge[0])
    if deep <= 0:
        return None
    if kind in _OF_ARGUMENT:
        kept = saved(node, "self")
        return None if kept is None else _OF_ARGUMENT[kind](kept.detach())
    if kind in _OF_RESULT:
        kept = saved(node, "result")
        return None if kept is None else kept.detach()
    if kind == "PowBackward":
        kept, exponent = saved(node, "self"), saved(node, "exponent")
        plain = kept is not None and isinstance(exponent, int | float)
        return kept.detach() ** exponent if plain else None
    if kind in _LOSSES:
        return _by_loss(node) if saved(node, "reduction") == _NONE else None
    if kind in _REDUCTIONS:
        each, axes = elements(node.next_functions[0], deep - 1), _axes(node)
        if each is None or not axes:
            return None
        return _REDUCTIONS[kind](each, axes, bool(saved(node, "keepdim")))
    if kind in autograd_graph.SAME | PICKS:
        each = elements(node.next_functions[0], deep - 1)
        return None if each is None else move(node, each, edge[1])
    if kind == "MulBackward" and len(autograd_graph.live_inputs(node)) == 2:
        both = saved(node, "self"), saved(node, "other")
        return None if both[0] is None or both[1] is None else both[0].detach() * both[1].detach()
    return _combine(node, lambda before: elements(before, deep - 1))


def _by_loss(node: Node) -> torch.Tensor | None:
    """Return what a loss function makes of each element that it was given."""
    given, target = saved(node, "self"), saved(node, "target")
    if given is None or target is None:
        return None
    function, rest = _LOSSES[kind_of(node)], {}
    for name in ("beta", "delta"):
        if (kept := saved(node, name)) is not None:
            rest[name] = kept
    return function(given.detach(), target.detach(), reduction=_NONE, **rest)


def _combine(node: Node, read: Callable[[Edge], torch.Tensor | None]) -> torch.Tensor | None:
    """Return the sum or the multiple of what is read of a node's inputs, or None."""
    live = [place for place, (before, _) in enumerate(node.next_functions) if before is not None]
    if not live or (len(live) > 1 and kind_of(node) not in SUMS):
        return None
    total: torch.Tensor | None = None
    for place in live:
        by = autograd_graph.constant_at(node, place)
        each = read(node.next_functions[place]) if isinstance(by, float | int) else None
        if each is None or (total is not None and total.dim() != each.dim()):
            return None
        total = by * each if total is None else total + by * each
    return total


def move(node: Node, each: torch.Tensor, place: int = 0) -> torch.Tensor | None:
    """Return numbers as an operation moves or picks them; None where it may do something else."""
    kind = kind_of(node)
    if kind == "SelectBackward":
        return each.select(signed(saved(node, "dim")), signed(saved(node, "index")))
    if kind == "UnbindBackward":
        return each.unbind(signed(saved(node, "dim")))[place]
    if kind == "SplitBackward":
        size = signed(saved(node, "split_size"))
        return torch.split(each, size, signed(saved(node, "dim")))[place]
    if kind == "SliceBackward":
        places = [slice(None)] * each.dim()
        ends = (signed(saved(node, name)) for name in ("start", "end", "step"))
        places[signed(saved(node, "dim"))] = slice(*ends)
        return each[tuple(places)]
    if kind == "FlipBackward":
        return each.flip([signed(axis) for axis in saved(node, "dims")])
    if kind == "IndexBackward":
        indices = saved(node, "indices")
        if indices is None:  # changed since
            return None
        return each[tuple(slice(None) if one is None else one for one in indices)]
    if kind == "TransposeBackward":
        return each.transpose(signed(saved(node, "dim0")), signed(saved(node, "dim1")))
    if kind == "PermuteBackward":
        return each.permute([signed(axis) for axis in saved(node, "dims")])
    shape = autograd_graph.shape_made(node)
    return each.reshape(shape) if torch.Size(shape).numel() == each.numel() else None


def find_axes(node: Node) -> Iterator[int]:
    """Yield the axes along which an operation picks some of what it is given."""
    kind = kind_of(node)
    if kind in autograd_graph.PARTS | _PIECES:
        yield signed(saved(node, "dim"))
    elif kind == "FlipBackward":
        yield from (signed(axis) for axis in saved(node, "dims"))
    elif kind == "IndexBackward":
        indices = saved(node, "indices") or ()
        yield from (axis for axis, one in enumerate(indices) if one is not None)
