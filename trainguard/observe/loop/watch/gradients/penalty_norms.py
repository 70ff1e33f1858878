"""Watches penalties on gradients: whether there is one norm for each output that has a gradient."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import torch

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.tools.patches import Patches, is_abstract
from trainguard.observe.tools.user_line import caller

_KEY = "trainguard gradient"  # of a node
_NODES = 256  # of a graph: a penalty stands near its end
_FEW = 3  # steps: nobody means it by chance
_NORMS = {"LinalgVectorNormBackward", "NormBackward", "SqrtBackward"}
_WITHIN = {"AddBackward", "MulBackward", "PowBackward", "SumBackward", *autograd_graph.SAME}
_DISTANCES = {"AddBackward", "RsubBackward", "SubBackward"}
_DEEP = 6  # operations between a gradient and its norm: squares, their sum, an epsilon, views


class _Gradient(NamedTuple):
    """One that was asked for with its graph: of how many outputs it is, and by which line."""

    outputs: int
    shape: tuple[int, ...]
    source: str


class PenaltyNorms(Watcher):
    """
    The Probe events "penalty": norms of gradients whose distance to a number goes into a loss.

    measured: how many norms there are, reference: of how many outputs, where there are more than
    that; label: the shape of the gradient.
    """

    makes = ("Probe:penalty",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._met = False  # whether a gradient with a graph was asked for since the last step
        self._found: dict[tuple[_Gradient, int], tuple[int, int]] = {}

    def install(self, patches: Patches) -> None:
        """Be told of gradients that are asked for with their graph."""
        patches.replace(torch.autograd, "grad", self._asks)

    def _asks(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """Return what computes gradients and marks them."""
        patches, faults = self.recorder.patches, self.recorder.faults
        elsewhere = self.recorder.thread.is_elsewhere

        @wraps(grad)
        def wrapper(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Compute gradients."""
            gradients = grad(outputs, inputs, *args, **kwargs)
            again = kwargs.get("create_graph", len(args) > 2 and args[2])
            watched = patches.active and patches.watching and not elsewhere()
            if again and watched and not is_abstract():
                faults.call(self, self._mark, outputs, gradients)
            return gradients

        return wrapper

    def _mark(self, outputs: Any, gradients: Iterable[torch.Tensor | None]) -> None:
        """Leave word at gradients of how many outputs they are."""
        given = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        count, source = sum(map(_count, given)), caller()
        for gradient in gradients:
            node: Node = None if gradient is None else gradient.grad_fn
            if gradient is not None and node is not None:
                node.metadata[_KEY] = _Gradient(count, tuple(gradient.shape), source)
                self._met, self.looked = True, self.looked | {"penalty"}

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for norms of what was marked."""
        met, self._met = self._met, False
        if not met or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _NODES))
        for norm, count in _find_norms(nodes):
            gradient = next(_gradients_of(norm), None)
            if gradient is not None and count > gradient.outputs and not count % gradient.outputs:
                step, times = self._found.get((gradient, count), (self.recorder.steps, 0))
                self._found[gradient, count] = step, times + 1

    def finish(self) -> Iterable[Event]:
        """Return what was found in several steps."""
        for (gradient, count), (step, times) in self._found.items():
            if times >= _FEW:
                yield Probe(
                    probe="penalty",
                    measured=float(count),
                    reference=float(gradient.outputs),
                    step=step,
                    label=str(gradient.shape),
                    source=gradient.source,
                )


def _count(output: torch.Tensor) -> int:
    """Return how many numbers are differentiated; of their sum or mean, how many it is of."""
    node: Node = output.grad_fn
    if output.numel() > 1 or node is None or kind_of(node) not in ("SumBackward", "MeanBackward"):
        return output.numel()
    return autograd_graph.elements(node) or 1


def _find_norms(nodes: list[Node]) -> Iterator[tuple[Node, int]]:
    """Yield the norms of which the distance to something is taken, with how many each has."""
    for node in nodes:
        behind = [before for before, _ in node.next_functions if before is not None]
        if kind_of(node) in _DISTANCES and len(behind) == 1 and kind_of(behind[0]) in _NORMS:
            result = autograd_graph.saved(behind[0], "result")
            if isinstance(result, torch.Tensor):
                yield behind[0], result.numel()


def _gradients_of(norm: Node) -> Iterator[_Gradient]:
    """Yield what was left at the gradient that a norm is of."""
    node = norm
    for _ in range(_DEEP):
        node = next((before for before, _ in node.next_functions if before is not None), None)
        if node is None:
            return
        if _KEY in node.metadata:
            yield node.metadata[_KEY]
        if kind_of(node) not in _WITHIN:
            return
