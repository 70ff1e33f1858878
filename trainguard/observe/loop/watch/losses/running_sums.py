"""Watches losses with a running sum over the samples of a batch: whether these are in an order."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.losses.written_losses import pass_of
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.owners import named_tensors, words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_LEAST, _LARGEST = 8, 2**16  # samples
_BETWEEN = 16  # operations from a running sum to the module that made the scores
_SUMS = {"CumsumBackward", "LogcumsumexpBackward"}
_TIMES = {
    "day",
    "days",
    "duration",
    "durations",
    "months",
    "survival",
    "t",
    "time",
    "times",
    "years",
}
_THROUGH = autograd_graph.SAME | {"AddBackward", "ExpBackward", "SubBackward", "MulBackward"}


class RunningSums(Watcher):
    """
    The Probe event "running sum": logarithms of running sums over samples that are in no order.

    Of one score for each sample, as a module returned it, in the order of the batch. measured:
    losses beside which nothing with a number for each sample rises or falls all the way, as it is
    or in an order that is there too; reference: losses with such a sum.

    And "early risk": sums that go from the shortest time to the longest, in the order in which they
    are summed. label: the variable; reference: losses whose times are known: by a name, or as what
    scores were sorted by where some of them count alone, those of an event.
    """

    makes = ("Probe:running sum", "Probe:early risk")
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = self._loose = self._timed = self._early = 0
        self._source = self._name = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for running sums in the graph of a loss."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        if len(nodes) >= _MOST_NODES:
            return
        with torch.no_grad():
            readers = autograd_graph.find_readers(nodes)
            for node in nodes:
                self._see_direction(node, readers.get(node, []))
            found = [rows for node in nodes if (rows := _count_compared(node))]
            ordered = _has_order(found[0]) if found else None
        if ordered is None:
            return
        self.looked.add("running sum")
        self._looks += 1
        if not ordered:
            self._loose += 1
            self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        if self._loose:
            yield make_probe("running sum", self._loose, self._looks, source=self._source)
        if self._early:
            told = {"label": self._name, "source": self._source}
            yield make_probe("early risk", self._early, self._timed, **told)

    def _see_direction(self, node: Node, readers: list[Node]) -> None:
        """See whether a running sum of scores begins with the shortest time."""
        summed = _find_summed(node)
        if summed is None:
            return
        times = [*_find_times(len(summed))]
        if not times and any(_counts_some(reader, len(summed)) for reader in readers):
            times = [*_find_times(len(summed), named=False)]
        known = [(name, own[summed].diff()) for name, own in times]
        falling = [name for name, steps in known if (steps <= 0).all()]
        rising = [name for name, steps in known if (steps >= 0).all()]
        if falling or rising:
            self.looked.add("early risk")
            self._timed += 1
            self._early += not falling
            self._name = self._name or (*falling, *rising)[0]
            self._source = self._source or caller()


def _find_summed(node: Node) -> torch.Tensor | None:
    """
    Return the places of the samples (N,) in the order in which their scores are summed up.

    Of scores that are compared with the logarithms of these sums; None where that is not known.
    """
    if kind_of(node) not in ("SubBackward", "RsubBackward"):
        return None
    sides = autograd_graph.live_inputs(node)
    sums = [found for side in sides if (found := _find_sum(side)) is not None]
    if len(sides) != 2 or len(sums) != 1:
        return None
    rows = torch.Size(autograd_graph.shape_made(sums[0])).numel()
    own = next(side for side in sides if _find_sum(side) is None)
    return _places_below(sums[0], rows) if _places_below(own, rows) is not None else None


def _find_sum(node: Node | None) -> Node | None:
    """Return the running sum over samples that something is the logarithm of, or None."""
    while node is not None and kind_of(node) in autograd_graph.SAME | {"FlipBackward"}:
        node = node.next_functions[0][0]
    if node is not None and kind_of(node) == "LogBackward":
        node = _before_constant(node.next_functions[0][0])
    shape = autograd_graph.shape_made(node) if node is not None and kind_of(node) in _SUMS else ()
    rows = torch.Size(shape).numel()
    along = len(shape) in (1, 2) and shape[0] == rows and _LEAST <= rows <= _LARGEST
    return node if along else None


def _places_below(node: Node | None, rows: int) -> torch.Tensor | None:
    """Return which samples numbers are of, as a module returned them; None if that is not known."""
    places = torch.arange(rows)
    for _ in range(_BETWEEN):
        if node is None or pass_of(node) is not None:
            return places if node is not None else None
        kind = kind_of(node)
        if kind == "FlipBackward":
            places = rows - 1 - places
        elif kind in ("IndexBackward", "IndexSelectBackward"):
            kept = autograd_graph.saved(node, "indices"), autograd_graph.saved(node, "index")
            order = [each for each in (*(kept[0] or ()), kept[1]) if each is not None]
            if len(order) != 1 or order[0].dtype != torch.long or not order[0].is_cpu:
                return None
            places = order[0][places]
        elif kind not in _SUMS and not _keeps_rows(node):
            return None
        node = next(iter(autograd_graph.live_inputs(node)), None)
    return None


def _count_compared(node: Node) -> int:
    """Return over how many samples scores are compared with running sums of them, or 0."""
    if kind_of(node) not in ("SubBackward", "RsubBackward"):
        return 0
    both = [_before_shapes(before) for before, _ in node.next_functions if before is not None]
    if len(both) != 2 or not any(map(pass_of, both)):
        return 0
    return max(map(_count_summed, both))


def _before_shapes(node: Node) -> Node:
    """Return what made numbers, or what a module returned, before their shape was changed."""
    while kind_of(node) in autograd_graph.SAME and pass_of(node) is None:
        node = node.next_functions[0][0]
    return node


def _count_summed(node: Node | None) -> int:
    """Return over how many samples something is a logarithm of running sums, or 0."""
    if node is not None and kind_of(node) == "LogBackward":
        node = _before_constant(node.next_functions[0][0])
    if node is None or kind_of(node) not in _SUMS:
        return 0
    shape = autograd_graph.shape_made(node)
    rows = torch.Size(shape).numel()
    if len(shape) not in (1, 2) or shape[0] != rows or not _LEAST <= rows <= _LARGEST:
        return 0
    if autograd_graph.signed(node._saved_dim) % len(shape):  # noqa: SLF001 torch names it so
        return 0
    exponential = kind_of(node) == "LogcumsumexpBackward"
    for _ in range(_BETWEEN):
        node = next((before for before, _ in node.next_functions if before is not None), None)
        if node is None or pass_of(node) is not None:
            return rows if node is not None and exponential else 0
        exponential = exponential or kind_of(node) == "ExpBackward"
        if not _keeps_rows(node):
            return 0
    return 0


def _keeps_rows(node: Node) -> bool:
    """Say whether an operation makes a number of each sample's, in their order."""
    if kind_of(node) == "SelectBackward":  # of a column
        return autograd_graph.signed(autograd_graph.saved(node, "dim") or 0) != 0
    return kind_of(node) in _THROUGH


def _before_constant(node: Node | None) -> Node | None:
    """Return what a logarithm is of, but for a small constant."""
    if node is not None and kind_of(node) == "AddBackward":
        return next((before for before, _ in node.next_functions if before is not None), None)
    return node


def _has_order(rows: int) -> bool | None:
    """
    Say whether a variable with a number for each sample rises or falls, perhaps in an order.

    None where no variable has different numbers for them, as times are.
    """
    columns = [held.detach().reshape(-1) for _, held in _columns()]
    places = [each for each in columns if each.dtype == torch.long and len(each) == rows]
    numbers = [each for each in columns if each.is_floating_point()]
    own = [each for each in numbers if len(each) == rows]
    own += [each[p] for p in places for each in numbers if _are_inside(p, len(each))]
    own = [each for each in own if len(set(each.tolist())) > rows // 2]
    return any(map(_is_monotonic, own)) if own else None


def _counts_some(node: Node, rows: int) -> bool:
    """Say whether an operation leaves out some of so many samples: those without an event."""
    masks = [each for each in autograd_graph.constants_of(node) if each.numel() == rows]
    return any(autograd_graph.is_mask(each) and 0 < each.sum() < rows for each in masks)


def _find_times(rows: int, *, named: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """
    Yield the user's times of the samples of a batch, as they are or by places among more.

    named: those that are called so; else all numbers above zero.
    """
    columns = [(name, each.detach().reshape(-1)) for name, each in _columns()]
    places = [each for _, each in columns if each.dtype == torch.long and len(each) == rows]
    for name, held in columns:
        positive = held.is_floating_point() and bool((held > 0).all())
        if words_in(name) & _TIMES if named else positive:
            chosen = [held[p] for p in places if _are_inside(p, len(held))]
            for each in (held, *chosen):
                if len(each) == rows and len(set(each.tolist())) > rows // 2:
                    yield name, each


def _columns() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the user's tensors with a number for each sample, of a batch or of all, by name."""
    for _, name, held in named_tensors():
        plain = type(held) is torch.Tensor and held.is_cpu and not held.requires_grad
        if plain and _LEAST <= held.numel() == held.shape[0] <= _LARGEST:
            yield name, held


def _are_inside(places: torch.Tensor, rows: int) -> bool:
    """Say whether numbers may be places among so many rows."""
    return int(places.min()) >= 0 and int(places.max()) < rows


def _is_monotonic(held: torch.Tensor) -> bool:
    """Say whether numbers rise, or fall, all the way."""
    steps = held.diff()
    return bool((steps >= 0).all() or (steps <= 0).all())
