"""Watches attention: whether it looks at the padding of sequences, and at nothing else."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**22  # elements of what is read
_HIDDEN = -1e4  # what is added to the scores of positions that are not to be seen, or less


@dataclass(slots=True)
class _Sight:
    """What is seen of a table of tokens: the steps looked at, and those of padding alone."""

    source: str
    steps: int = 0
    padding: int = 0


class AttendedPadding(Watcher):
    """
    The Probe event "attended": tables of tokens of which some attention sees the padding alone.

    Padding is a token that all rows end or begin with, in runs of different lengths. What attention
    sees stands in the graph: weights above zero, or the mask of a fused one.
    """

    makes = ("Probe:attended",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._sights: dict[str, _Sight] = {}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare what each attention sees with the padding of the tables of its shape."""
        if loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        tables = list(autograd_graph.find_tables(nodes))
        if len(nodes) >= _MOST_NODES or not tables:
            return
        views = [view for node in nodes for view in _views(node)]
        for weight, rows, _ in tables:
            padding = _padding_of(rows)
            if padding is None:
                continue
            seen = [kept for view in views if (kept := _kept(view, rows.shape)) is not None]
            if seen:
                self._count(weight, padding, seen)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for name, sight in self._sights.items():
            if sight.padding:
                yield make_probe(
                    "attended", sight.padding, sight.steps, label=name, source=sight.source
                )

    def _count(self, weight: torch.Tensor, padding: torch.Tensor, seen: list[torch.Tensor]) -> None:
        """Count a step in which a table of tokens is seen."""
        self.looked.add("attended")
        name = self.recorder.names.parameter(weight)
        sight = self._sights.setdefault(name, _Sight(caller()))
        sight.steps += 1
        some = padding.any(1) & ~padding.all(1)
        sight.padding += any(torch.equal(kept[some], padding[some]) for kept in seen)


def _padding_of(rows: torch.Tensor) -> torch.Tensor | None:
    """Return where rows end, or else begin, with runs of one token that are not all as long."""
    for turned in (rows.flip(1), rows):
        own = (turned == turned[:, :1]).int().cumprod(1).sum(1)
        runs = (turned == turned[own.argmax(), 0]).int().cumprod(1).bool()
        lengths = runs.sum(1)
        if int(lengths.min()) < int(lengths.max()) < rows.shape[1] and int(lengths.max()) > 1:
            return runs.flip(1) if turned is not rows else runs
    return None


def _views(node: Node) -> Iterator[torch.Tensor]:
    """Yield, where a node is an attention, which places it sees: of (..., queries, keys)."""
    kind = autograd_graph.kind_of(node)
    with suppress(RuntimeError):
        if kind in ("SoftmaxBackward", "SafeSoftmaxBackward"):  # the second where all is hidden
            weights = autograd_graph.saved(node, "result")
            if weights is None:
                return
            if weights.is_cpu and weights.dim() > 1 and weights.numel() <= _LARGEST:
                yield weights > 0
        elif kind.startswith("ScaledDotProduct"):
            mask = autograd_graph.saved(node, "attn_mask")
            if mask is not None and mask.is_cpu and mask.dim() > 2 and mask.numel() <= _LARGEST:
                yield mask if mask.dtype is torch.bool else mask > _HIDDEN


def _kept(view: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Return which keys of each row are seen by any query; None where there are other rows."""
    many, keys = shape
    if view.shape[-1] != keys or len(view) % many:
        return None
    return view.reshape(many, -1, keys).any(1)
