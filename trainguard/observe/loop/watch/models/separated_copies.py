"""Watches copies of samples in a batch: whether what is made of them comes together again."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import VIEWS, Node, kind_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 8, 64}  # that are looked at
_MOST_NODES = 4096
_LARGEST = 2**22  # numbers that are compared
_TOGETHER = {
    *("AmaxBackward", "AminBackward", "LogsumexpBackward", "MaxBackward", "MeanBackward"),
    *("LogSoftmaxBackward", "MinBackward", "SoftmaxBackward", "SumBackward"),
}


class SeparatedCopies(Watcher):
    """
    The Probe event "separated copies": losses over groups of rows that are copies of others.

    A layer is given each sample several times, in one of both orders: all samples, and all again;
    or all copies of one, and then of the next. What is made of these rows becomes a table of as
    many samples by as many copies, as the other order would have it. measured: looks at which
    groups of that table were reduced; reference: those with a table of that size; label: how many
    samples and copies, and the order.
    """

    makes = ("Probe:separated copies",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._found = 0
        self._label = self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare the order of copies with that of the tables that are reduced."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        tables = list(_find_tables(nodes)) if len(nodes) < _MOST_NODES else []
        orders = _find_orders(nodes, {rows * columns for rows, columns, _ in tables})
        known = [each for each in tables if each[0] * each[1] in orders]
        if not known:
            return
        self.looked.add("separated copies")
        self._looks += 1
        for rows, columns, axis in known:
            samples, is_tiled = orders[rows * columns]
            copies = rows * columns // samples
            # As the other order would have it, and reduced along what would be the copies then.
            wrong = (samples, copies, 1) if is_tiled else (copies, samples, 0)
            if samples != copies and (rows, columns, axis) == wrong:
                self._found += 1
                self._label = f"{samples} {copies} {'repeat' if is_tiled else 'repeat_interleave'}"
                self._source = caller()
                return

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._found:
            yield make_probe(
                "separated copies",
                self._found,
                self._looks,
                label=self._label,
                source=self._source,
            )


def _find_tables(nodes: list[Node]) -> Iterator[tuple[int, int, int]]:
    """Yield the shapes of tables that rows of numbers are viewed as, with the axis reduced."""
    for node in nodes:
        before = node.next_functions[0][0] if node.next_functions else None
        if kind_of(node) not in _TOGETHER or before is None or kind_of(before) not in VIEWS:
            continue
        flat, shape = autograd_graph.sizes(before), _shape_of(node)
        axis = getattr(node, "_saved_dim", None)
        axes = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
        if len(shape) == 2 and len(axes) == 1 and flat[:1] == (shape[0] * shape[1],):
            yield shape[0], shape[1], autograd_graph.signed(axes[0]) % 2


def _shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of what a node reduces."""
    for name in ("self", "result"):
        kept = saved(node, name)
        if isinstance(kept, torch.Tensor) and kept.dim() == 2:
            return tuple(kept.shape)
    return tuple(autograd_graph.sizes(node))


def _find_orders(nodes: list[Node], counts: set[int]) -> dict[int, tuple[int, bool]]:
    """Return for each number of rows with copies how many samples there are, and if all in turn."""
    found: dict[int, tuple[int, bool]] = {}
    for node in nodes if counts else ():
        rows = saved(node, "mat1") if kind_of(node) == "AddmmBackward" else None
        if rows is None or rows.requires_grad or not (rows.is_cpu and has_rows(rows)):
            continue
        few = rows.numel() <= _LARGEST and len(rows) in counts
        if few and (order := _order_of(rows.detach())) is not None:
            found[len(rows)] = order
    return found


def _order_of(rows: torch.Tensor) -> tuple[int, bool] | None:
    """Return how many samples rows are copies of, and whether these come all in turn; or None."""
    same = (rows == rows[0]).all(1).nonzero()[:, 0]
    count = len(rows)
    if len(same) < 2 or count % len(same):
        return None
    copies, samples = len(same), count // len(same)
    step = int(same[1])
    is_tiled = step == samples
    if samples < 2 or step not in (1, samples):
        return None
    table = rows.reshape(copies, samples, -1) if is_tiled else rows.reshape(samples, copies, -1)
    first = table[:1] if is_tiled else table[:, :1]
    different = len(torch.unique(first.reshape(samples, -1), dim=0)) > 1
    return (samples, is_tiled) if different and bool((table == first).all()) else None
