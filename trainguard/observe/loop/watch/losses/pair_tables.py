"""
Watches losses that are made of nothing but a softmax over a table of pairs, also those by hand.

Contrastive losses compare each sample with all of a batch: what a model that knows nothing loses
there is the logarithm of how many candidates each row has, those left out that are masked.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import exp, inf, log1p
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, signed
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.tools.user_line import caller

_TRIES = 4  # looks after which a run whose losses are of another kind is left alone
_MOST_NODES = 512  # between a loss and its tables: by hand they are some dozens
_LARGEST = 2**22  # elements of a table
_PRODUCTS = {"BmmBackward", "CdistBackward", "EuclideanDistBackward", "MmBackward"}
_SOFTMAX = {"ExpBackward", "LogSoftmaxBackward", "LogsumexpBackward", "SoftmaxBackward"}
_TURNED = autograd_graph.SAME | {"ExpandBackward", "TBackward"}
_LEAST = 8  # candidates: among fewer, chance is not far from having learned
_MASKED = -1e4  # a logarithm below which a candidate was left out; masks begin at -65504
_ONE = 1e-2  # that the length of a vector differs from one at most


class PairTables(Watcher):
    """
    The Probe event "pairs": what a model that knows nothing loses, and that of the best one.

    The best one has the highest score that a pair can have, and all others the lowest, where the
    scores are of vectors of length one; else it may lose nothing.
    """

    makes = ("Probe:pairs",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = 0
        self._found: list[tuple[float, float, str]] = []
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look whether a loss is made of tables of pairs alone."""
        if loss.grad_fn is None or not loss.is_cpu:
            return  # elsewhere each look would be waited for
        self._looks += 1
        with suppress(RuntimeError), torch.no_grad():  # what was changed since cannot be read
            found = _describe(loss)
            if found is not None:
                self._found.append(found)
                self._source = self._source or caller()
        if self._looks >= _TRIES and not self._found:
            self.recorder.dismiss(self)

    def finish(self) -> Iterable[Event]:
        """Return what was found, where all losses are of that kind."""
        if self._found and len(self._found) == self._looks:
            chances, floors, labels = zip(*self._found, strict=True)
            yield Probe(
                probe="pairs",
                measured=sum(chances) / self._looks,
                reference=min(floors),
                step=self._looks,
                label=labels[0],
                source=self._source,
            )


def _describe(loss: torch.Tensor) -> tuple[float, float, str] | None:
    """Return the loss of who knows nothing, that of the best, and the shape of the first table."""
    nodes = list(_above_products(loss.grad_fn))
    products = [node for node in nodes if autograd_graph.kind_of(node) in _PRODUCTS]
    if len(nodes) >= _MOST_NODES or not products or any(map(_is_learned, nodes)):
        return None
    tables = [table for node in nodes if (table := _scores_of(node)) is not None]
    if not tables:
        return None
    chances = [(table > _MASKED).sum(1).clamp(min=1).log().mean() for table in tables]
    floor = _lowest(tables[0], products[0]) if len(products) == 1 else 0.0
    shape = f"({tables[0].shape[0]},{tables[0].shape[1]})"
    return float(torch.stack(chances).mean()), floor, shape


def _above_products(root: Node) -> Iterator[Node]:
    """Yield the nodes of a graph from its root down to products of what was made."""
    seen, waiting = {root}, [root]
    while waiting and len(seen) <= _MOST_NODES:
        node = waiting.pop()
        yield node
        if autograd_graph.kind_of(node) in _PRODUCTS and not _is_of_a_parameter(node):
            continue
        befores = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= befores
        waiting.extend(befores)


def _is_of_a_parameter(node: Node) -> bool:
    """Say whether a product is one with a parameter, as it may be turned or viewed."""
    for before, _ in node.next_functions:
        while before is not None and autograd_graph.kind_of(before) in _TURNED:
            before = before.next_functions[0][0]
        if hasattr(before, "variable"):
            return True
    return False


def _is_learned(node: Node) -> bool:
    """Say whether a node is a parameter other than one number, such as a temperature."""
    return hasattr(node, "variable") and node.variable.numel() > 1


def _scores_of(node: Node) -> torch.Tensor | None:
    """Return what a softmax is over, but for a number that is added to each row."""
    kind = autograd_graph.kind_of(node)
    if kind not in _SOFTMAX:
        return None
    made = autograd_graph.saved(node, "self" if kind == "LogsumexpBackward" else "result")
    if made is None or made.dim() < 2 or made.numel() > _LARGEST:
        return None
    along = getattr(node, "_saved_dim", -1)
    axis = signed(along[0] if isinstance(along, tuple) else along)
    logs = made.float() if kind.startswith("Log") else made.float().log()
    rows = logs.movedim(axis, -1)
    return rows.reshape(-1, rows.shape[-1]) if rows.shape[-1] >= _LEAST else None


def _lowest(scores: torch.Tensor, product: Node) -> float:
    """Return the loss of the best scores that products of vectors of length one can have."""
    first, second = (autograd_graph.saved(product, name) for name in ("self", "mat2"))
    if first is None or second is None or first.dim() != 2:
        return 0.0
    lengths = torch.cat([first.float().norm(dim=1), second.float().norm(dim=0)])
    known = scores[scores > _MASKED]
    cosines = first.float() @ second.float()
    if float((lengths - 1).abs().max()) > _ONE or cosines.numel() != scores.numel():
        return 0.0
    rows = scores.masked_fill(scores <= _MASKED, float(known.max()))
    widths = (rows.amax(1) - rows.amin(1)).max()
    other = max(float((c.amax(1) - c.amin(1)).max()) for c in (cosines, cosines.mT))
    factor = float(widths) / other if other > 0 else inf
    return log1p((scores.shape[1] - 1) * exp(-2 * factor))
