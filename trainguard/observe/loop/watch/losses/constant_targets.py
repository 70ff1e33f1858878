"""Watches outputs that every loss pulls to one and the same target, whatever the input."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches

_ENTROPIES = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"}
_PLACES = 16  # outputs that are followed
_LOOKS = 64  # steps in which the targets of one are looked at: what is one in all of them stays so
_NODES = 2**12  # of what is beside the loss functions: in more, anything may be learned
_NEAR = 8  # operations between a loss function and the layer that made its input
_LAYERS = {"AddBackward", "AddmmBackward", "ConvolutionBackward", "LinearBackward", "MmBackward"}
_BETWEEN = autograd_graph.SAME | {"SigmoidBackward", "SelectBackward", "SliceBackward"}


@dataclass(slots=True)
class _Output:
    """
    The bias, or the weight, of the layer that makes an output, and the targets of all its losses.

    value: the one that all of them were; nan where they differ. lines: of the calls. together: the
    most calls between two passes backward. steps: those that were looked at. held: by an optimizer.
    """

    bias: "weakref.ref[torch.Tensor]"
    value: float
    lines: dict[str, None] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    calls: int = 0
    together: int = 0
    held: bool = False


class ConstantTargets(Watcher):
    """
    The Probe event "one target": outputs that two losses or more pull to one target and no other.

    Only where nothing but these loss functions trains what makes the output: a part of a loss that
    is written by hand may well pull the other way.
    """

    makes = ("Probe:one target",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._outputs: dict[int, _Output] = {}
        self._elsewhere: set[int] = set()  # leaves that something else trains as well
        self._unknown = False

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look at the targets of an output in a step that is looked at more closely."""
        if tally.function not in _ENTROPIES or not value.requires_grad or self._unknown:
            return
        # An optimizer that never steps, or no more, is always before a closer look.
        windows = self.recorder.going or self.recorder.windows
        if not any(window.is_surveyed for window in windows[-4:]):
            return
        bias = _bias_of(scores)
        if bias is None or not isinstance(target, torch.Tensor) or not target.numel():
            return
        output = self._outputs.get(id(bias))
        if output is None or output.bias() is not bias:
            if len(self._outputs) >= _PLACES:
                return
            output = self._outputs[id(bias)] = _Output(weakref.ref(bias), _single(target))
        if output.value == output.value and len(output.steps) < _LOOKS:
            output.value = output.value if _single(target) == output.value else nan
            output.steps.add(self.recorder.steps)
            output.lines[tally.source] = None
            output.calls += 1
            output.together = max(output.together, output.calls)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """See what a loss has besides the loss functions of torch."""
        for output in self._outputs.values():
            output.calls = 0
        if not self._outputs or loss.grad_fn is None:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _NODES, stop_at_marks=True))
        self._unknown = self._unknown or len(nodes) > _NODES
        self._elsewhere |= autograd_graph.leaves_of(nodes)

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """See which outputs the optimizer trains."""
        held = {id(parameter) for parameter in window.parameters} if self._outputs else set()
        for key, output in self._outputs.items():
            output.held = output.held or key in held
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the outputs of which all targets were one."""
        self.looked |= {"one target"} if self._outputs else set()
        for key, output in self._outputs.items():
            several = max(len(output.lines), output.together)
            alone = output.held and key not in self._elsewhere and not self._unknown
            if output.value == output.value and alone and several > 1:
                yield make_probe(
                    "one target",
                    len(output.steps),
                    several,
                    step=max(output.steps),
                    label=f"{output.value:g}",
                    source=next(reversed(output.lines)),
                )


def _bias_of(scores: torch.Tensor) -> torch.Tensor | None:
    """Return the bias, or else the weight, of the layer that made a loss's input; None of none."""
    node = scores.grad_fn
    for _ in range(_NEAR):
        if node is None:
            return None
        kind = autograd_graph.kind_of(node)
        if kind in _LAYERS:
            leaves = [_leaf_at(before) for before, _ in node.next_functions]
            return min((p for p in leaves if p is not None), key=torch.Tensor.dim, default=None)
        if kind not in _BETWEEN:
            return None
        node = node.next_functions[0][0]
    return None


def _leaf_at(node: autograd_graph.Node) -> torch.Tensor | None:
    """Return the leaf that a node stands for, or turns around."""
    if node is not None and autograd_graph.kind_of(node) == "TBackward":
        node = node.next_functions[0][0]
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    return leaf


def _single(target: torch.Tensor) -> float:
    """Return the one number that all targets are; nan where they differ, or would be waited for."""
    if not target.is_cpu:
        return nan
    low, high = target.aminmax()
    return float(low) if bool(low == high) else nan
