"""Watches for functions at their limit, which give back zeros for every gradient they get."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.models.function_lines import find_function_line, find_line_near
from trainguard.observe.loop.watch.parameters.parameters import Parameters
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.user_line import caller

# Steps made before it is looked at, and how much later again: a phase of 20 steps or more is seen
# that begins in the first 80 % of a run.
_FROM, _GROWTH = 20, 1.25
_MOST_NODES = 4000
_MOST_LOOKS = 4  # passes backward that are looked at in one step
# What has a limit, or steps, and the word for it in Python.
_LIMITED = {
    "ClampBackward": "clamp",
    "ClampMinBackward": "clamp",
    "ClampMaxBackward": "clamp",
    "HardsigmoidBackward": "hardsigmoid",
    "HardtanhBackward": "hardtanh",
    "ReluBackward": "relu",
    "SigmoidBackward": "sigmoid",
    "TanhBackward": "tanh",
    "ThresholdBackward": "threshold",
    "CeilBackward": "ceil",
    "FloorBackward": "floor",
    "RoundBackward": "round",
    "SgnBackward": "sgn",
    "SignBackward": "sign",
    "TruncBackward": "trunc",
}
_SHARES = {"LogSoftmaxBackward": "log_softmax", "SoftmaxBackward": "softmax"}
# What a loss may be added up with: a function below nothing else is a margin or a penalty.
_SUMS = {
    *("AddBackward", "CatBackward", "DivBackward", "ExpandBackward", "IndexBackward"),
    *("MaximumBackward", "MeanBackward", "MinimumBackward", "MulBackward", "NegBackward"),
    *("RsubBackward", "SelectBackward", "SliceBackward", "StackBackward", "SubBackward"),
    *("SqueezeBackward", "SumBackward", "ToCopyBackward", "UnsqueezeBackward", "ViewBackward"),
}


class Saturation(Watcher):
    """
    The Probe events "saturated", of parameters whose latest gradients were all zero.

    At steps 20, 25, 31, 38, ... it is seen where in the graph of the user's own pass backward their
    gradient becomes zero: `label` is "<parameter> <function>" where functions at their limit alone
    do that, and something other than sums comes after them.
    """

    makes = ("Probe:saturated",)
    relies_on = ("MadeLines", "Parameters")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._due, self._looks = _FROM, 0
        self._flow: _Flow | None = None
        self._found: dict[str, Probe] = {}

    def before_backward(self, loss: torch.Tensor) -> None:
        """Be told of the gradients on the way to parameters that get nothing but zeros."""
        steps, self._flow = self.recorder.steps, None  # a pass that failed has left its own
        if steps < self._due or loss.grad_fn is None:
            return
        self._looks += 1
        if steps > self._due or self._looks > _MOST_LOOKS:
            self._due, self._looks = max(int(self._due * _GROWTH), steps + 1), 0
        silent = {id(p): p for p in self.recorder.watcher(Parameters).find_silent(_FROM)}
        if silent:
            self._flow = _Flow(loss.grad_fn, silent)
            self._flow.listen(self._note)

    def after_step(self, window: Window) -> Columns:
        """Ask for the norms in time, where they are on an accelerator."""
        if self.recorder.steps + window.stride >= self._due:
            self.recorder.watcher(Parameters).ask_norms(_FROM)
        return {}

    def after_backward(self, loss: torch.Tensor) -> None:
        """See where the gradients have become zero."""
        flow, self._flow = self._flow, None
        if flow is None:
            return
        flow.close()
        for parameter, functions in flow.limits():
            name = self.recorder.names.parameter(parameter)
            self._found[name] = Probe(
                probe="saturated",
                measured=float(parameter.numel()),
                step=self.recorder.steps,
                label=f"{name} {functions[0]}",
                source=self._find_line(parameter, functions[0]),
            )

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self._flow = None
        return self._found.values()

    def _find_line(self, parameter: torch.Tensor, function: str) -> str:
        """Return the one line of a parameter's model that calls a function, or of the script."""
        holder = self.recorder.names.holder(parameter)
        own = find_function_line(self.recorder, function, holder)
        return own or find_line_near(caller(), function)

    @shielded
    def _note(self, node: Node, given: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        """Keep which gradients of a node are zero: those that arrived, and those that it gives."""
        if self._flow is not None:
            self._flow.alive[node] = not all(map(_is_zero, arrived))
            self._flow.given[node] = [not _is_zero(gradient) for gradient in given]


class _Flow:
    """
    What arrives at nodes of one graph between a loss and some of its leaves.

    alive: whether a gradient other than zero arrived at a node; given: the same of each of those
    that it has given on.
    """

    def __init__(self, root: Node, leaves: dict[int, torch.Tensor]) -> None:
        self.alive: dict[Node, bool] = {}
        self.given: dict[Node, list[bool]] = {}
        self._handles: list[Any] = []
        self._above: dict[Node, list[tuple[Node, int]]] = {}  # by whom, and at which place
        nodes = list(autograd_graph.below(root, _MOST_NODES))
        if len(nodes) >= _MOST_NODES:
            nodes = []
        for node in nodes:
            for place, (before, _) in enumerate(node.next_functions):
                self._above.setdefault(before, []).append((node, place))
        own = [(n, getattr(n, "variable", None)) for n in nodes]
        self._leaves = [(node, leaves[id(p)]) for node, p in own if id(p) in leaves]

    def listen(self, note: Callable[..., None]) -> None:
        """Have all gradients between the loss and the leaves noted."""
        waiting = [node for node, _ in self._leaves]
        seen: set[Node] = set()
        while waiting:
            for node, _ in self._above.get(waiting.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
                    self._handles.append(node.register_hook(partial(note, node)))

    def close(self) -> None:
        """Be told of nothing any more."""
        for handle in self._handles:
            handle.remove()

    def limits(self) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Yield each leaf whose gradient became zero in limited functions alone, with those."""
        for leaf, parameter in self._leaves:
            ends = self._ends(leaf)
            kinds = [_limit_of(node) for node in ends]
            if ends and all(kinds) and any(map(self._is_inside, ends)):
                yield parameter, kinds

    def _ends(self, leaf: Node) -> list[Node]:
        """Return the nodes at which what flows to a leaf has become zero; none where it has not."""
        ends, waiting, seen = [], [leaf], {leaf}
        while waiting:
            for node, place in self._above.get(waiting.pop(), ()):
                given = self.given.get(node)
                if given is None or place >= len(given) or given[place]:
                    return []
                if self.alive[node]:
                    ends.append(node)
                elif node not in seen:
                    seen.add(node)
                    waiting.append(node)
        return ends

    def _is_inside(self, node: Node) -> bool:
        """Say whether more than sums are made of what a function returns."""
        waiting, seen = [node], {node}
        while waiting:
            for above, _ in self._above.get(waiting.pop(), ()):
                live = sum(before is not None for before, _ in above.next_functions)
                kind = autograd_graph.kind_of(above)
                if kind not in _SUMS or (kind in ("MulBackward", "DivBackward") and live > 1):
                    return True
                if above not in seen:
                    seen.add(above)
                    waiting.append(above)
        return False


def _limit_of(node: Node) -> str:
    """Return the word for a function with a limit, or for a softmax that has one element."""
    kind = autograd_graph.kind_of(node)
    axis = autograd_graph.saved(node, "dim") if kind in _SHARES else None
    shape = autograd_graph.shape_made(node) if isinstance(axis, int) else None
    if shape and shape[autograd_graph.signed(axis)] == 1:
        return _SHARES[kind]
    return _LIMITED.get(kind, "")


def _is_zero(gradient: torch.Tensor | None) -> bool:
    """Say whether a gradient is missing, or zero everywhere; what cannot be read is not."""
    if gradient is None:
        return True
    with torch.no_grad():
        return gradient.layout == torch.strided and not bool(gradient.any())
