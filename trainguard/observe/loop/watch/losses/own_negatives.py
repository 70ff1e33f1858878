"""Watches contrastive losses written by hand for samples that are among their own negatives."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.user_line import caller

_NODES = 512  # of the graph above the model: by hand they are some dozens
_TRIES = 4  # looks after which a run without such tables is left alone
_CALLS = 8  # losses that are looked at
_LEAST, _LARGEST = 8, 4096  # samples
_NEAR = 1e-3  # of how far typical scores are below the diagonal: half precision makes as much
_STEPS = 3  # from a table to where its positives are picked
_SUMS = {"SumBackward"}
_AFTER_SUMS = {"DivBackward", "LogBackward"}  # what is taken off a sum may be the diagonal


class OwnNegatives(Watcher):
    """
    The Probe event "self", of softmaxes by hand: tables of pairs with a diagonal that is the same.

    That is the highest of each row and not among what the loss takes of the table beside the
    softmax, which are the positives. `SelfMatches` sees those that a cross-entropy is given.
    """

    makes = ("Probe:self",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = 0
        self._tables = self._found = 0
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the tables that a loss is made of."""
        if loss.grad_fn is None or not loss.is_cpu or self._looks >= _CALLS:
            return
        self._looks += 1
        nodes = list(autograd_graph.below(loss.grad_fn, _NODES))
        readers = autograd_graph.find_readers(nodes)
        for table, node in _find_tables(nodes, readers):
            self._tables += 1
            self._found += has_own(table) and _has_positives(node, readers)
            self._source = self._source or caller()
        if self._looks >= _TRIES and not self._tables:
            self.recorder.dismiss(self)

    def finish(self) -> Iterable[Event]:
        """Return what was found, where each table is one."""
        self.looked |= {"self"} if self._tables else set()
        if self._tables and self._found == self._tables:
            yield make_probe("self", self._found, self._tables, source=self._source)


def _find_tables(
    nodes: Iterable[Node], readers: dict[Node, list[Node]]
) -> Iterator[tuple[torch.Tensor, Node]]:
    """Yield the logarithms, but for a number in each row, that softmaxes are over, and the node."""
    for node in nodes:
        kind = kind_of(node)
        if any(kind_of(reader).startswith("NllLoss") for reader in readers.get(node, ())):
            continue  # of a cross-entropy
        if kind == "LogsumexpBackward":
            table = saved(node, "self")
        elif kind == "LogSoftmaxBackward" or (kind == "ExpBackward" and _is_summed(node, readers)):
            table = saved(node, "result")
        else:
            continue
        if table is None or table.dim() != 2 or table.shape[0] != table.shape[1]:
            continue
        if table.is_cpu and _LEAST <= len(table) <= _LARGEST:
            table = table.detach().float()
            yield table.log() if kind == "ExpBackward" else table, node


def _is_summed(node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Say whether all of an exponential is added up, and is what another thing is divided by."""
    sums = [one for one in readers.get(node, ()) if kind_of(one) in _SUMS]
    after = [kind_of(reader) for one in sums for reader in readers.get(one, ())]
    return bool(after) and set(after) <= _AFTER_SUMS


def has_own(table: torch.Tensor) -> bool:
    """Say whether scores are those of samples with each other, and their own are the highest."""
    below = table - table.diagonal()[:, None]
    off = ~torch.eye(len(table), dtype=torch.bool)
    typical = float(below[off].median())
    near = -_NEAR * typical
    # NaN, as of a masked diagonal, is not near anything.
    return typical < 0 and bool(((below - below.T).abs() <= near).all() & (below <= near).all())


def _has_positives(node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Say whether a loss takes something of a table beside its softmax, and not the diagonal."""
    tables = autograd_graph.live_inputs(node)[:1]
    takes = [reader for table in tables for reader in readers.get(table, ()) if reader is not node]
    if kind_of(node) != "LogsumexpBackward":
        takes += [reader for reader in readers.get(node, ()) if kind_of(reader) not in _SUMS]
    near = list(takes)
    for _ in range(_STEPS):  # a difference or a view may be between
        takes = [reader for one in takes for reader in readers.get(one, ())]
        near += takes
    return bool(near) and not any(map(_takes_diagonal, near))


def _takes_diagonal(node: Node) -> bool:
    """Say whether an operation picks what is on the diagonal of a table, or weighs it."""
    kind = kind_of(node)
    if kind.startswith("Diagonal"):
        return bool(saved(node, "offset") == 0)
    if kind == "GatherBackward":
        index = saved(node, "index")
        return index is not None and bool((index == torch.arange(len(index))[:, None]).any())
    picked = list(saved(node, "indices") or ()) if kind == "IndexBackward" else []
    if len(picked) == 2 and None not in picked:
        return bool((picked[0] == picked[1]).any())
    masks = [*autograd_graph.constants_of(node), *picked]
    masks += [saved(node, "mask")] if kind == "MaskedSelectBackward" else []
    return any(
        mask.dim() == 2 and bool(mask.diagonal().any()) for mask in masks if mask is not None
    )
