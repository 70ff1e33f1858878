"""Watches batches of graphs: whether their edges lie in all of them, or in the first ones alone."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.user_line import caller

_PASSES = 64  # that are looked at
_INPUTS = 8  # tensors that a pass is given
_LARGEST = 2**20  # edges
_GRAPHS = 4  # of a batch, at least
_EDGES = 0.5  # for each node, at least: sparser graphs may well have none
_FEW = 0.25  # of the graphs of a batch


class BatchedGraphs(Watcher):
    """
    The Probe event "graphs": passes whose edges lie in the first few graphs of their batch alone.

    And "crossed graphs": those with edges between graphs that end before their last node.

    A batch of graphs is the features or kinds of all nodes, pairs of nodes, and the graph of each
    node, as PyTorch Geometric has it.
    """

    makes = ("Probe:graphs", "Probe:crossed graphs")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = self._crowded = self._crossed = 0
        self._sizes: set[int] = set()  # of passes with edges between graphs
        self._reaching = False  # whether such edges are meant: one of these passes has all nodes
        self._source = ""

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at what a pass that learns is given, if it is a batch of graphs."""
        if self._passes >= _PASSES:
            self.recorder.dismiss(self)
            return
        if not forward.gradients:
            return
        given = [t for t in self.recorder.given[:_INPUTS] if t.is_cpu]
        edges = next((t for t in given if _is_number(t) and t.dim() == 2 and len(t) == 2), None)
        if edges is None or not 0 < edges.numel() <= 2 * _LARGEST:
            return
        others = [t for t in given if t is not edges and 0 < t.dim() <= 2]
        of_nodes = {len(t) for t in others if t.is_floating_point() and t.dim() == 2}
        kinds = [t for t in others if _is_number(t) and t.dim() == 1]  # of nodes, or their graphs
        of_nodes |= {size for size, many in Counter(map(len, kinds)).items() if many > 1}
        rising = (t for t in kinds if len(t) in of_nodes and bool((t[1:] >= t[:-1]).all()))
        graphs = next(rising, None)
        with suppress(RuntimeError, IndexError):  # these were other numbers
            if graphs is not None:
                self._count(edges, graphs)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self.looked |= {"graphs"} if self._passes else set()
        if self._crowded:
            yield make_probe("graphs", self._crowded, self._passes, source=self._source)
        elif len(self._sizes) > 1 and not self._reaching:
            yield make_probe("crossed graphs", self._crossed, self._passes, source=self._source)

    def _count(self, edges: torch.Tensor, graphs: torch.Tensor) -> None:
        """Count a batch of several graphs that have edges enough for all."""
        several = int(graphs[-1]) + 1
        if several < _GRAPHS or edges.shape[1] < _EDGES * len(graphs):
            return
        self._passes += 1
        ends = graphs[edges]
        if len(torch.unique(ends)) <= _FEW * several:
            self._crowded += 1
        elif bool((ends[0] != ends[1]).any()) and _are_numbered(graphs):
            self._crossed += 1
            self._sizes.add(len(graphs))
            self._reaching |= int(edges.max()) + 1 == len(graphs)
        else:
            return
        self._source = self._source or caller()


def _are_numbered(graphs: torch.Tensor) -> bool:
    """Say whether numbers that rise begin with 0 and leave none out, as times may."""
    return int(graphs[0]) == 0 and int(graphs.diff().max()) <= 1


def _is_number(tensor: torch.Tensor) -> bool:
    """Say whether a tensor holds whole numbers, as indices are."""
    return tensor.dtype in (torch.int64, torch.int32)
