"""Watches for losses, written by hand, that compare or weigh every output with every sample's."""

from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.user_line import caller

_STEPS = 8
_NEAR = 12  # nodes from the loss
_MOST_NODES = 4096  # of one side of a sum or difference
_STEPS_ON = 4  # nodes between a choice and what it is compared with
_REDUCTIONS = {"MeanBackward", "SumBackward"}
_ELEMENTWISE = {
    "AbsBackward",
    "ClampBackward",
    "CoshBackward",
    "DivBackward",
    "LogBackward",
    "MeanBackward",
    "MulBackward",
    "NegBackward",
    "PowBackward",
    "SoftplusBackward",
    "SqrtBackward",
    "SumBackward",
}
_JOINTS = {"AddBackward", "DivBackward", "MulBackward"}  # of two parts
_PRODUCTS = {"AddmmBackward", "BmmBackward", "MmBackward"}  # of a network that is no module
_CHOICES = {
    "MaximumBackward",
    "MinimumBackward",
    "WhereBackward",
}  # of one of two parts, for each element
_COLUMNS = {"GatherBackward", "SelectBackward", "SliceBackward"}
_DIFFERENCES = {"SubBackward", "RsubBackward"}
_WEIGHED = 48  # nodes from the loss: a policy's has the terms of values and entropies beside it
_BETWEEN = {  # a product and its mean
    *_ELEMENTWISE,
    "AddBackward",
    "ClampBackward",
    "MaximumBackward",
    "MinimumBackward",
    "SubBackward",
}
_LEAST_ROWS, _READ = 8, 64  # of a table: fewer are of few vectors by chance; rows that are read
_VECTORS = (
    2  # that a table of pairs is made of: a difference, or one value for now and one for then
)
_ON_PURPOSE = {"UnsqueezeBackward", "ExpandBackward", "IndexBackward", "RepeatBackward"}


_Edge = tuple[autograd_graph.Node, int]


class BroadcastLosses(Watcher):
    """
    The Probe events "broadcast", found in the graphs of the first steps.

    A mean or sum over N x N elements is one of pairs where a difference below it has N elements of
    the model's output on one side, nothing that learns on the other, and nobody asked for a table
    by adding a dimension. Differences in which both sides learn are rankings. N elements may be
    chosen too, one for each of N samples, as the values of actions are by `gather`, or be a column.
    Or the output is such a table, and the sum, product or difference of (N, 1) and (N,).

    And "weighed crosswise": such a mean of the term of each sample (N) times constants of (N, 1),
    or times a table of N x N that is made of one or two vectors, as `rewards - values` is.
    """

    makes = ("Probe:broadcast", "Probe:weighed crosswise")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._outputs: dict[int, str] = {}  # sizes of outputs in this window: the module's name
        self._batches: dict[int, str] = {}  # of how many samples: the same
        self._found: dict[str, Probe] = {}
        self._called = False  # whether a module was, in this window

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember how many elements an outermost module returned."""
        self._called |= forward.gradients
        if self.recorder.probe and self.recorder.age < _STEPS and forward.gradients:
            made = [t for t in tensors_in(output) if t.requires_grad and 0 < t.dim() < 3][:8]
            self._outputs |= {t.numel(): forward.module for t in made if t.numel() > 1}
            self._batches |= {len(t): forward.module for t in made if len(t) >= _LEAST_ROWS}

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the graph of the loss."""
        if self._found or loss.grad_fn is None or self.recorder.age >= _STEPS:
            return
        by_hand = not self._called and self.recorder.probe  # by functions, and no module
        if not self._outputs and not by_hand:
            return
        try:
            sizes = _sizes_of_pairs(loss) if by_hand else self._outputs
            count = _pairs(loss, sizes) or _pairs(loss, self._batches, _is_chosen)
            weighed = _weighed(loss, set(self._batches))
            self.looked.add("broadcast")
        except Exception:  # noqa: BLE001 not every version of torch tells the same of its graph
            return
        if count or weighed:
            name, size = ("weighed crosswise", weighed) if weighed else ("broadcast", count)
            names = {size: "", **self._batches, **({} if weighed else self._outputs)}
            step, source = self.recorder.steps, caller()
            self._found[source] = make_probe(
                name, size * size, size, step=step, label=names[size], source=source
            )

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Forget the outputs of the window."""
        self._called = False
        self._outputs.clear()
        self._batches.clear()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found.values()


def _sizes_of_pairs(loss: torch.Tensor) -> set[int]:
    """Return sides of the square tables that a loss of no module goes over, made of products."""
    near = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
    if not any(autograd_graph.kind_of(node) in _PRODUCTS for node in near):
        return set()
    shapes = [
        autograd_graph.sizes(node)
        for node in near[:_WEIGHED]
        if autograd_graph.kind_of(node) in _REDUCTIONS
    ]
    return {shape[0] for shape in shapes if len(shape) == 2 and shape[0] >= _LEAST_ROWS}


def _is_any(_: autograd_graph.Node) -> bool:
    """Say of any difference that it may be one of outputs and targets."""
    return True


def _is_chosen(difference: autograd_graph.Node) -> bool:
    """Say whether all that learns in a difference is of a table, one of each row or a column."""
    node = difference
    for _ in range(_STEPS_ON):
        live = _learning(node)
        if len(live) != 1:
            return False
        node = live[0][0]
        kind = autograd_graph.kind_of(node)
        if kind in _COLUMNS or kind not in _ELEMENTWISE:
            return kind in _COLUMNS
    return False


def _pairs(
    loss: torch.Tensor,
    counts: Collection[int],
    may_be: Callable[[autograd_graph.Node], bool] = _is_any,
) -> int:
    """Return the number of outputs that are compared with all targets in a loss, 0 if none are."""
    near = list(autograd_graph.below(loss.grad_fn, _WEIGHED))
    for node in near:
        shape = autograd_graph.sizes(node) if autograd_graph.kind_of(node) in _REDUCTIONS else ()
        square = len(shape) == 2 and shape[0] == shape[1] and shape[0] in counts
        if square and _compares(loss, node, shape[0], _NEAR, may_be):
            return 0 if any(_ranks(loss, each, shape[0]) for each in near) else shape[0]
    return 0


def _ranks(loss: torch.Tensor, node: autograd_graph.Node, count: int) -> bool:
    """
    Say whether something compares so many outputs with as many others that learn.

    That is a ranking, or a distance between distributions, which has pairs on purpose.
    """
    live = _learning(node)
    if autograd_graph.kind_of(node) not in _DIFFERENCES or len(live) < 2:
        return False
    return all(prod(autograd_graph.shape_after(loss, *each)) == count for each in live)


def _compares(
    loss: torch.Tensor,
    node: autograd_graph.Node,
    count: int,
    depth: int,
    may_be: Callable[[autograd_graph.Node], bool],
) -> bool:
    """Say whether something is made of differences of so many outputs from something constant."""
    live, kind = _learning(node), autograd_graph.kind_of(node)
    if kind in _DIFFERENCES | {"AddBackward"} and len(live) > 1:
        live = [each for each in live if _has_parameters(each[0])] or live
    if kind in _DIFFERENCES or (kind == "AddBackward" and _is_table(loss, node, live, count)):
        before, output = live[0]
        meant = autograd_graph.kind_of(before) in _ON_PURPOSE or not may_be(node)
        if prod(autograd_graph.shape_after(loss, before, output)) == count:
            return not meant
        if len(live) == 1 and _is_crossed(loss, before, count):
            return True
    if kind in _JOINTS | _CHOICES | _DIFFERENCES and len(live) > 1 and depth:
        # The other part may have a number for each output: what is said of how sure it is.
        tables = [_compares(loss, before, count, depth - 1, may_be) for before, _ in live]
        each = [prod(autograd_graph.shape_after(loss, *other)) == count for other in live]
        return any(tables) and (kind in _CHOICES or all(map(max, tables, each)))
    if kind not in _ELEMENTWISE | _DIFFERENCES | {"AddBackward"} or not live or not depth:
        return False
    return all(_compares(loss, before, count, depth - 1, may_be) for before, _ in live)


def _is_table(loss: torch.Tensor, node: autograd_graph.Node, live: list[_Edge], count: int) -> bool:
    """Say whether a sum of one part that learns and of constants has more elements than that."""
    made = prod(autograd_graph.shape_made(node))
    return len(live) == 1 and made == count * count != prod(
        autograd_graph.shape_after(loss, *live[0])
    )


def _is_crossed(loss: torch.Tensor, node: autograd_graph.Node, count: int) -> bool:
    """Say whether a table of outputs is made of (N, 1) and (N,), of the same N samples."""
    for _ in range(_STEPS_ON):
        live = _learning(node)
        if len(live) == 2 and autograd_graph.kind_of(node) in _JOINTS | _DIFFERENCES:
            shapes = {autograd_graph.shape_after(loss, *each) for each in live}
            meant = any(_is_asked_for(before) for before, _ in live)
            return shapes == {(count, 1), (count,)} and not meant
        if len(live) != 1 or autograd_graph.kind_of(node) not in _BETWEEN:
            return False
        node = live[0][0]
    return False


def _is_asked_for(node: autograd_graph.Node) -> bool:
    """Say whether a dimension was added to numbers, and nothing but sums and factors since."""
    for _ in range(_STEPS_ON):
        live, kind = _learning(node), autograd_graph.kind_of(node)
        if kind in _ON_PURPOSE or len(live) != 1 or kind not in _BETWEEN:
            return kind in _ON_PURPOSE
        node = live[0][0]
    return False


def _weighed(loss: torch.Tensor, counts: set[int]) -> int:
    """Return of how many samples each term is weighed by what belongs to all others; 0 of none."""
    for node in autograd_graph.below(loss.grad_fn, _WEIGHED) if counts else ():
        shape = autograd_graph.sizes(node) if autograd_graph.kind_of(node) in _REDUCTIONS else ()
        square = len(shape) == 2 and shape[0] == shape[1] and shape[0] in counts
        if square and _weighs_crosswise(loss, node, shape[0], _NEAR):
            return shape[0]
    return 0


def _weighs_crosswise(
    loss: torch.Tensor, node: autograd_graph.Node, count: int, depth: int
) -> bool:
    """Say whether a table is made of one term for each sample and constants of all of them."""
    live = _learning(node)
    for before, output in live if depth else ():
        size = prod(autograd_graph.shape_after(loss, before, output))
        own = size == count and autograd_graph.kind_of(before) not in _ON_PURPOSE
        if own and len(live) == 1 and autograd_graph.kind_of(node) == "MulBackward":
            first = node.next_functions[0][0] is before
            weights = autograd_graph.saved(node, "other" if first else "self")
            return weights is not None and _is_crosswise(weights, count)
        between = size == count * count and autograd_graph.kind_of(before) in _BETWEEN | {
            "MulBackward"
        }
        if between and _weighs_crosswise(loss, before, count, depth - 1):
            return True
    return False


def _is_crosswise(weights: torch.Tensor, count: int) -> bool:
    """Say whether constants are a vector, or a table that was made of few of them, not one mask."""
    if weights.numel() == count:
        return bool((weights != weights.reshape(-1)[0]).any())
    if tuple(weights.shape) != (count, count) or not weights.is_floating_point():
        return False
    table = weights.detach()[:_READ, :_READ].double()
    # Distances, and what is alike in two samples, are of pairs on purpose.
    paired = torch.equal(table, table.T) or torch.equal(table, -table.T)
    varies = bool((table != table[:1]).any()) and bool((table != table[:, :1]).any())
    several = len(set(table.flatten().tolist())) > len(table)
    rounded = len(table) * torch.finfo(weights.dtype).eps
    rank = int(torch.linalg.matrix_rank(table, rtol=rounded)) if table.isfinite().all() else count
    return varies and several and not paired and rank <= _VECTORS


def _has_parameters(node: autograd_graph.Node) -> bool:
    """Say whether something learns: what is made of an input that needs a gradient does not."""
    nodes = list(autograd_graph.below(node, _MOST_NODES))
    leaves = (getattr(each, "variable", None) for each in nodes)
    return len(nodes) >= _MOST_NODES or any(isinstance(leaf, nn.Parameter) for leaf in leaves)


def _learning(node: autograd_graph.Node) -> list[_Edge]:
    """Return what a node takes from others that learn, each with the number of its output."""
    return [(before, output) for before, output in node.next_functions if before is not None]
