"""Watches evaluations of what no longer learns, behind statistics that follow another training."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.parameters.batch_statistics import BatchStatistics
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward

_PASSES = 16  # that move statistics: fewer may set them up
_LOOKS = 4096  # passes of one module that are looked at: which head they ask, only they tell


@dataclass(slots=True)
class _HeadTraining:
    """
    A pass of a module that learned from batches behind frozen layers.

    parts: ids of the modules that it called. versions: of all parameters of the module by then.
    looks: evaluations of it that were looked at since.
    """

    parts: set[int]
    versions: "list[tuple[weakref.ref[nn.Parameter], int]]"
    looks: int = 0

    def has_moved(self, part: nn.Module) -> bool:
        """Say whether a part has parameters of its own that were written to since, or are new."""
        known = {id(p): version for ref, version in self.versions if (p := ref()) is not None}
        own = part.parameters(recurse=False)
        return any(known.get(id(p)) != p._version for p in own)  # noqa: SLF001


class DriftedPaths(Watcher):
    """
    The Probe event "drifted": how far statistics have moved behind which another head learns.

    It is an evaluation of a head that this learning does not call, and of which no number has
    moved meanwhile. measured: the mean move of a layer's statistics, in its own deviations;
    reference: the batches that it has taken in. label: the head.
    """

    makes = ("Probe:drifted",)
    relies_on = ("BatchStatistics",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._trainings: weakref.WeakKeyDictionary[nn.Module, _HeadTraining] = (
            weakref.WeakKeyDictionary()
        )
        self._earlier: set[int] | None = None  # what was called before the pass that is followed
        self._found: dict[str, Probe] = {}
        recorder.before_pass.append(self._before_pass)

    def _before_pass(self, module: nn.Module) -> None:
        """Begin to follow what a pass calls, where that tells something."""
        self._take_called(module)  # of a pass that did not come to its end
        if self._is_wanted(module):
            own = {id(part) for part in module.modules()}
            self._earlier = self.recorder.called & own
            self.recorder.called.difference_update(own)

    def _take_called(self, module: nn.Module) -> set[int] | None:
        """Return the parts that the pass has called, if it was followed; put back the others."""
        if self._earlier is None:
            return None
        called = self.recorder.called & {id(part) for part in module.modules()}
        self.recorder.called.update(self._earlier)
        self._earlier = None
        return called

    def _is_wanted(self, module: nn.Module) -> bool:
        """Say whether a pass is one that learns behind a frozen layer, or an evaluation after."""
        layers = self._layers(module)
        training = self._trainings.get(module)
        if not layers or module.training == (training is not None):
            return False
        return training is None or (
            not torch.is_grad_enabled()
            and training.looks < _LOOKS
            and all(frozen.taken >= _PASSES and frozen.stays for frozen in layers.values())
        )

    def _layers(self, module: nn.Module) -> dict[nn.Module, Any]:
        """Return the frozen layers of a module that are followed."""
        frozen = self.recorder.watcher(BatchStatistics).frozen_layers()
        return {part: frozen[part] for part in module.modules() if part in frozen} if frozen else {}

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what a pass has called."""
        parts = self._take_called(module)
        if parts is None:
            return
        training = self._trainings.get(module)
        if training is None and forward.gradients:
            versions = [(weakref.ref(p), p._version) for p in module.parameters()]  # noqa: SLF001
            self._trainings[module] = _HeadTraining(parts, versions)
        elif training is not None:
            training.looks += 1
            self._look(forward, module, training, parts)

    def _look(
        self, forward: Forward, module: nn.Module, training: _HeadTraining, parts: set[int]
    ) -> None:
        """Ask how far the layers have moved that a head is asked behind, if nothing else has."""
        called = [part for part in module.modules() if id(part) in parts]
        heads = [p for p in called if id(p) not in training.parts and _has_weights(p)]
        layers = {p: frozen for p, frozen in self._layers(module).items() if id(p) in parts}
        if not (heads and layers) or any(training.has_moved(part) for part in called):
            return
        self.looked.add("drifted")
        found = make_probe(
            "drifted",
            0.0,
            max(frozen.taken for frozen in layers.values()),
            step=forward.step,
            label=self.recorder.names.module(heads[0]),
            source=forward.source,
        )
        moves = [_move(layer, frozen) for layer, frozen in layers.items()]
        self.recorder.reads.ask(self, moves, partial(self._take, found))

    def _take(self, found: Probe, moves: list[torch.Tensor]) -> None:
        """Keep the largest move."""
        self._found[found.label] = replace(found, measured=max(map(float, moves)))

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found.values()


def _has_weights(part: nn.Module) -> bool:
    """Say whether a module has a matrix of its own."""
    return any(p.dim() > 1 for p in part.parameters(recurse=False))


def _move(layer: Any, frozen: Any) -> torch.Tensor:
    """Return how far the statistics of a layer have moved, in the deviations that it had."""
    with torch.no_grad():
        before, after = (frozen.variance + layer.eps).sqrt(), (layer.running_var + layer.eps).sqrt()
        # The distance of two normal distributions (Wasserstein's, of order 2).
        distances = torch.hypot(layer.running_mean - frozen.mean, after - before)
        moved: torch.Tensor = (distances / before).mean()
    return moved
