"""Watches what logarithms of a softmax are weighed by: whether smoothed labels add up to one."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import resolve
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, constants_of, kind_of
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**20  # elements of a target
_CLASSES = 3  # of two, a sum may be that of two labels that hold by themselves
_ALIKE = 1e-3  # between the numbers of one row, and between the sums of all: what rounding leaves
_OFF = 0.02  # of one


class SoftTargets(Watcher):
    """
    The Probe event "target sum": smoothed labels whose rows add up to something else than one.

    Of losses of torch and by hand that multiply a log_softmax by a table whose rows have one number
    for their class, and one for all the others. measured: the sum, of the look that was furthest
    off; reference: 1; step: looks at which it was off; label: the shape.
    """

    makes = ("Probe:target sum",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._off = 0
        self._sum = 1.0
        self._label = self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for tables that multiply the logarithms of a softmax."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        for node in nodes if len(nodes) < _MOST_NODES else ():
            table = _soft_target(node)
            if table is not None:
                self.looked.add("target sum")
                shape = f"({','.join(map(str, table.shape))})"
                take = partial(self._take, shape, caller())
                self.recorder.reads.ask(self, [_describe(table)], take)

    def _take(self, shape: str, source: str, found: list[torch.Tensor]) -> None:
        """Keep the sum that is furthest from one, where all rows have it."""
        is_smoothed, low, high = found[0].tolist()
        if is_smoothed and high - low <= _ALIKE and abs(low - 1) > _OFF:
            self._off += 1
            if abs(low - 1) > abs(self._sum - 1):
                self._sum, self._label, self._source = low, shape, source

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        if self._off:
            rest = {"step": self._off, "label": self._label, "source": self._source}
            yield make_probe("target sum", self._sum, 1.0, **rest)


def _soft_target(node: Node) -> torch.Tensor | None:
    """Return the table that a node weighs a log_softmax by, its classes last; None of others."""
    live = [edge for edge in node.next_functions if edge[0] is not None]
    table = next(constants_of(node), None) if len(live) == 1 else None
    softmax = resolve(live[0])[0] if table is not None else None
    if table is None or softmax is None or kind_of(softmax) != "LogSoftmaxBackward":
        return None
    if not table.is_floating_point() or table.dim() < 2 or table.numel() > _LARGEST:
        return None
    axis = autograd_graph.signed(softmax._saved_dim) % table.dim()  # noqa: SLF001 torch names it so
    made = autograd_graph.shape_made(softmax)
    if made != tuple(table.shape) or table.shape[axis] < _CLASSES:
        return None
    return table.detach().movedim(axis, -1)


def _describe(table: torch.Tensor) -> torch.Tensor:
    """Return whether each row has one large and else equal numbers above 0, and its sums' range."""
    ordered = table.float().sort(-1).values
    low, second, high = ordered[..., 0], ordered[..., -2], ordered[..., -1]
    sums = ordered.sum(-1)
    smoothed = ((low > 0) & (second - low <= _ALIKE * high) & (high > 2 * second)).all()
    return torch.stack([smoothed.float(), sums.min(), sums.max()])
