"""Watches penalties on gradients: one norm for each output, and of all of that one's gradient."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
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
_SCALES = {"DivBackward", "MulBackward", "NegBackward"}
_DISTANCES = {"AddBackward", "RsubBackward", "SubBackward"}
_MEANT = 4  # times 1 / outputs: a norm that is held to less may be meant for the mean of them
_DEEP = 6  # operations between a gradient and its norm: squares, their sum, an epsilon, views


class _Gradient(NamedTuple):
    """
    One that was asked for with its graph: of how many outputs it is, and by which line.

    of_mean: whether it is the gradient of their mean, so that each has its part of it alone.
    """

    outputs: int
    shape: tuple[int, ...]
    source: str
    of_mean: bool


class _Norms(NamedTuple):
    """Those whose distance to a number goes into a loss: their node, and what the loss saved."""

    node: Node
    values: torch.Tensor
    distances: torch.Tensor | None  # where they are squared
    sign: int  # -1 where norms are taken from the number


class PenaltyNorms(Watcher):
    """
    The Probe events "penalty": norms of gradients whose distance to a number goes into a loss.

    measured: how many norms there are, reference: of how many outputs, where there are more than
    that; label: the shape of the gradient. Those of "penalty of a mean" have as many or fewer, of
    gradients of the mean of all outputs, and are held to a number that no part of it can be meant
    to reach.
    """

    makes = ("Probe:penalty", "Probe:penalty of a mean")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._met = False  # whether a gradient with a graph was asked for since the last step
        self._found: dict[tuple[str, _Gradient, int], tuple[int, int]] = {}

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
                weights = kwargs.get("grad_outputs", args[0] if args else None)
                faults.call(self, self._mark, outputs, weights, gradients)
            return gradients

        return wrapper

    def _mark(self, outputs: Any, weights: Any, gradients: Iterable[torch.Tensor | None]) -> None:
        """Leave word at gradients of how many outputs they are."""
        given = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        counts, source = [*map(_count, given)], caller()
        of_mean = _is_mean(given) and _is_one(weights)
        if not all(counts):
            return
        for gradient in gradients:
            node: Node = None if gradient is None else gradient.grad_fn
            if gradient is not None and node is not None:
                node.metadata[_KEY] = _Gradient(sum(counts), tuple(gradient.shape), source, of_mean)
                self._met, self.looked = True, self.looked | {"penalty"}

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look for norms of what was marked."""
        met, self._met = self._met, False
        if not met or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _NODES))
        for norms in _find_norms(nodes):
            found = _find_gradient(norms.node)
            if found is None:
                continue
            gradient, is_scaled = found
            count = norms.values.numel()
            if count > gradient.outputs and not count % gradient.outputs:
                self._add("penalty", gradient, count)
            elif gradient.of_mean and not is_scaled and self._is_part(gradient, norms):
                self._add("penalty of a mean", gradient, count)

    def finish(self) -> Iterable[Event]:
        """Return what was found in several steps."""
        for (probe, gradient, count), (step, times) in self._found.items():
            if times >= _FEW:
                yield Probe(
                    probe=probe,
                    measured=float(count),
                    reference=float(gradient.outputs),
                    step=step,
                    label=str(gradient.shape),
                    source=gradient.source,
                )

    def _is_part(self, gradient: _Gradient, norms: _Norms) -> bool:
        """Say whether norms are of parts of gradients; once it is known, nothing is waited for."""
        count = norms.values.numel()
        _, times = self._found.get(("penalty of a mean", gradient, count), (0, 0))
        several = count > 1 and not gradient.outputs % count
        return several and times < _FEW and _is_out_of_reach(norms, gradient.outputs)

    def _add(self, probe: str, gradient: _Gradient, count: int) -> None:
        """Count what was found in a step."""
        step, times = self._found.get((probe, gradient, count), (self.recorder.steps, 0))
        self._found[probe, gradient, count] = step, times + 1


def _is_mean(outputs: list[torch.Tensor]) -> bool:
    """Say whether the mean of several numbers is differentiated."""
    node: Node = outputs[0].grad_fn
    return len(outputs) == outputs[0].numel() == 1 and kind_of(node) == "MeanBackward"


def _is_one(weights: Any) -> bool:
    """Say whether the gradient of one number is asked for as it is; no device is waited for."""
    given = weights[0] if isinstance(weights, list | tuple) and weights else weights
    if isinstance(given, torch.Tensor):
        return given.device.type == "cpu" and given.numel() == 1 and given.item() == 1
    return given is None


def _is_out_of_reach(norms: _Norms, outputs: int) -> bool:
    """Say whether norms are held to a number that is no part of one for each of the outputs."""
    if norms.distances is None:
        return False
    target = norms.values.detach() - norms.sign * norms.distances.detach()
    return bool((target * outputs > _MEANT).all())


def _count(output: torch.Tensor) -> int:
    """
    Return how many numbers are differentiated; of their sum or mean, how many it is of.

    A sum may be multiplied; 0 where one number is made of others in another way.
    """
    node: Node = output.grad_fn
    if output.numel() > 1 or node is None:
        return output.numel()
    while kind_of(node) in _SCALES and len(_behind(node)) == 1:
        node = _behind(node)[0]
    if kind_of(node) in ("SumBackward", "MeanBackward"):
        return autograd_graph.elements(node) or 1
    return 0 if kind_of(node) in _SCALES or kind_of(node) in _DISTANCES else 1


def _find_norms(nodes: list[Node]) -> Iterator[_Norms]:
    """Yield the norms of which the distance to something is taken."""
    squared = {id(before): node for node in nodes for before in _squares(node)}
    for node in nodes:
        behind = _behind(node)
        if kind_of(node) in _DISTANCES and len(behind) == 1 and kind_of(behind[0]) in _NORMS:
            result = autograd_graph.saved(behind[0], "result")
            distances = autograd_graph.saved(squared.get(id(node)), "self")
            if isinstance(result, torch.Tensor):
                turned = kind_of(node) == "RsubBackward" or node.next_functions[0][0] is None
                yield _Norms(behind[0], result, distances, -1 if turned else 1)


def _squares(node: Node) -> list[Node]:
    """Return what an operation is the square of, if it is one."""
    return _behind(node) if kind_of(node) == "PowBackward" else []


def _behind(node: Node) -> list[Node]:
    """Return the operations whose results an operation was given."""
    return [before for before, _ in node.next_functions if before is not None]


def _find_gradient(norm: Node) -> tuple[_Gradient, bool] | None:
    """Return what was left at the gradient that a norm is of, and whether it is multiplied."""
    node, is_scaled = norm, False
    for _ in range(_DEEP):
        is_scaled = is_scaled or (kind_of(node) == "MulBackward" and len(_behind(node)) == 1)
        node = next(iter(_behind(node)), None)
        if node is None:
            return None
        if _KEY in node.metadata:
            return node.metadata[_KEY], is_scaled
        if kind_of(node) not in _WITHIN:
            return None
    return None
