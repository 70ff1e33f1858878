"""Watches, in a model that does not learn, what becomes of its input from layer to layer."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients.autograd_graph import kind_of
from trainguard.observe.loop.watch.losses.constant_predictions import ConstantPredictions
from trainguard.observe.loop.watch.models.made_lines import MadeLines
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Inputs, Run
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen
from trainguard.observe.loop.watch.parameters.drawn_lines import DrawnLines
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.user_line import caller

_STEPS = {48, 64, 96, 128, 192, 256, 384, 512, 1024}  # 48 is what a model has to learn something
_LAYERS = (nn.Linear, _ConvNd, nn.RNNBase)
_LEAST_ROWS = 4
_LOST = 0.01  # of what differs between samples in the first layer: models that learn keep half
_GROWN = 1e3  # times what comes in: no score of a class, and no target of unit size, is as large
_NEAR = 8  # operations between two layers
# What brings numbers close together, and the word for it in Python.
_FLATTENING = {
    "SigmoidBackward": "sigmoid",
    "SoftmaxBackward": "softmax",
    "LogSoftmaxBackward": "log_softmax",
    "TanhBackward": "tanh",
}


class _Layer(NamedTuple):
    """A call of a layer: the line, what comes before it, and sizes of what goes in and out."""

    name: str
    line: str
    before: str
    given: float  # root mean square of what goes in, and of what of it differs between samples
    apart: float
    made: float
    made_apart: float


@dataclass(frozen=True, slots=True)
class _ListeningCall(CopyableCall):
    """A call of a copy whose layers are listened to."""

    layers: list[_Layer] = field(default_factory=list)

    def call_copy(self, module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
        """Call the copy, with a graph that tells what is between its layers."""
        outside = caller()
        with ExitStack() as undo, torch.enable_grad():
            for name, part in module.named_modules():
                if isinstance(part, _LAYERS):

                    def note(_: Any, given: Any, made: Any, name: str = name) -> None:
                        """Note sizes of what goes in and comes out."""
                        line = caller()
                        self._note(name, "" if line == outside else line, given, made)

                    undo.callback(part.register_forward_hook(note).remove)
            return super(_ListeningCall, self).call_copy(module, inputs)

    def _note(self, name: str, line: str, given: Any, made: Any) -> None:
        """Add a call of a layer, where its rows are samples."""
        first, second = next(tensors_in(given)), next(tensors_in(made))
        if len(first) == len(second) >= _LEAST_ROWS and first.is_floating_point():
            sizes = (*_measure(first), *_measure(second))
            self.layers.append(_Layer(name, line, _flattening(first), *sizes))


class SignalProbe(ModuleProbe):
    """
    The Probe events "signal lost" and "signal grown", of models no better than a constant.

    Lost: what differs between samples is 100 times smaller in the last layer than in the first.
    Grown: numbers become 1000 times larger on their way.
    """

    makes = ("Probe:signal lost", "Probe:signal grown")
    relies_on = ("ConstantPredictions", "DrawnLines", "Forwards", "MadeLines")

    probe = "signal"

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the pass, where the model should have learned something and has not."""
        if self.is_wanted and self.recorder.age in _STEPS:
            super().forward(forward, module, inputs, output)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether the loss is no better than that of a constant."""
        return self.recorder.watcher(ConstantPredictions).lags()

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Compare the first layer with the last."""
        assert isinstance(call, _ListeningCall)
        run(call.inputs)
        layers = call.layers
        if len(layers) < 2 or not all(isfinite(size) for layer in layers for size in layer[3:]):
            return None
        first, last = layers[0], layers[-1]
        if last.made > _GROWN * max(first.given, 1.0):
            weights = [weight for layer in layers for weight in self._weights(call, layer)]
            return Seen(
                last.made,
                first.given,
                probe="signal grown",
                label=f"{self._name(call, first)} to {self._name(call, last)}",
                source=self.recorder.watcher(DrawnLines).find_line(weights),
            )
        if last.apart < _LOST * first.apart:
            before, after = min(_pairs(layers), key=lambda pair: pair[1].apart / pair[0].made_apart)
            word = f", where {after.before} is" if after.before else ""
            return Seen(
                last.apart,
                first.apart,
                probe="signal lost",
                label=f"{self._name(call, before)} and {self._name(call, after)}{word}",
                source=self._find_activation(call, before, after) or before.line,
            )
        return None

    def _find_activation(self, call: CopyableCall, before: _Layer, after: _Layer) -> str:
        """Return the line that made the module between two layers that brings numbers together."""
        modules = list(call.module.named_modules())
        names = [name for name, _ in modules]
        between = modules[names.index(before.name) : names.index(after.name)]
        own = [part for _, part in between if type(part).__name__.lower() == after.before]
        return self.recorder.watcher(MadeLines).find_line(own[-1]) if own else ""

    def _name(self, call: CopyableCall, layer: _Layer) -> str:
        """Return the name of a layer of the live module."""
        return f"`{self.recorder.names.module(call.module.get_submodule(layer.name))}`"

    def _weights(self, call: CopyableCall, layer: _Layer) -> Iterable[torch.Tensor]:
        """Return the parameters of a layer of the live module."""
        held = call.module.get_submodule(layer.name)._parameters  # noqa: SLF001 a property may write
        return [weight for weight in held.values() if weight is not None]

    def _look_at_copy(self, call: CopyableCall) -> Seen | None:
        """Return what is seen on a copy that is listened to."""
        return super()._look_at_copy(
            _ListeningCall(call.module, call.inputs, call.keywords, call.casts)
        )


def _pairs(layers: list[_Layer]) -> Iterator[tuple[_Layer, _Layer]]:
    """Yield layers that follow each other, of which the first makes something that differs."""
    for before, after in pairwise(layers):
        if before.made_apart > 0:
            yield before, after


def _measure(rows: torch.Tensor) -> tuple[float, float]:
    """Return the root mean square of some rows, and of what of them differs between rows."""
    flat = rows.detach().flatten(1).float()
    return float(flat.square().mean().sqrt()), float(flat.var(0, correction=0).mean().sqrt())


def _flattening(tensor: torch.Tensor) -> str:
    """Name what brings numbers close together among the operations that made a tensor."""
    node = tensor.grad_fn
    for _ in range(_NEAR):
        if node is None:
            break
        if (word := _FLATTENING.get(kind_of(node))) is not None:
            return word
        node = node.next_functions[0][0] if node.next_functions else None
    return ""
