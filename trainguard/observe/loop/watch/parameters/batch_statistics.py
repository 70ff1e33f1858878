"""Watches the batch statistics that evaluations use: whether they ever followed the data."""

import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.parameters.averaged_copies import AveragedCopies
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.user_line import caller

_FROZEN_PASSES = 16  # that move the statistics of a frozen layer: fewer may set them up
_OFTEN = 4  # of passes with one sample, where that is the rule
_FROZEN_AT = 2  # the pass that it is looked at in: at the first, nothing is set up yet
_LOOKS = 16  # evaluations of one module that are looked at
_KNOWN = 8  # of them, before a module is no average: one is known as such once it has moved
_BRIEF = (0.9, 1.0)  # momenta that leave hardly more than the last batch; 1 is chosen on purpose
_BATCH_NORM = nn.modules.batchnorm._NormBase  # noqa: SLF001 what all of them derive from


@dataclass(frozen=True, slots=True)
class _StatisticsLook:
    """
    A look at the statistics of a module, whose numbers may come later.

    called: its name. source: where it was called. names: those of the layers in evaluation mode.
    whole: whether these are all.
    """

    module: "weakref.ref[nn.Module]"
    called: str
    source: str
    step: int
    names: list[str]
    whole: bool


@dataclass(slots=True)
class FrozenLayer:
    """
    A layer whose scale requires no gradient, with the batches that it has seen and its scale.

    mean, variance: its statistics as they were by then. around: the weights of the part that it is
    in, with their versions; none where that learns. taken: the batches that it has taken in since;
    stays: whether nothing around it has moved.
    """

    ref: "weakref.ref[Any]"
    batches: torch.Tensor
    scale: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    around: "list[tuple[weakref.ref[torch.Tensor], int]]"
    taken: int = 0
    stays: bool = False

    def look(self, layer: Any) -> list[torch.Tensor]:
        """See whether what is around has moved, or may learn again, and return what to read."""
        weights = [(ref(), version) for ref, version in self.around]
        self.stays = bool(weights) and all(
            p is not None and not p.requires_grad and p._version == version  # noqa: SLF001
            for p, version in weights
        )
        # An average that is written to `.data` has the same version.
        moved = (layer.weight.detach() != self.scale).any()
        return [layer.num_batches_tracked - self.batches, moved]

    def take(self, numbers: list[torch.Tensor]) -> None:
        """Take down how many batches there were, and whether the scale has moved."""
        self.taken, self.stays = int(numbers[0]), self.stays and not bool(numbers[1])


class BatchStatistics(Watcher):
    """
    The Probe event "statistics": a mean of 0 and a variance of 1 in an evaluation, as at first.

    measured: how many batches they have seen. Told are those that saw some and did not move, and
    those of an average whose own weights have moved, while those of its model saw some.

    And the Probe event "alone": how many passes learn from one sample by its own statistics,
    against the samples of the others. And "frozen statistics": batches that a layer has taken in
    whose scale requires no gradient; reference is 1 where the part that it is in has not moved
    since either. And "brief statistics": the largest momentum with which statistics that an
    evaluation uses follow the batches, against the number of such layers. And "kept statistics":
    how many batches a model has seen while those of its average stayed what they were.
    """

    makes = (
        *("Probe:statistics", "Probe:alone", "Probe:frozen statistics"),
        *("Probe:brief statistics", "Probe:kept statistics"),
    )
    relies_on = ("AveragedCopies", "Batches")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._layers: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()
        self._looks: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._found: dict[str, Probe] = {}
        self._brief: dict[str, Probe] = {}
        # Of averages: their sums at the first look, how many batches their model had seen by then.
        self._averages: dict[str, tuple[list[float], float]] = {}
        self._kept: dict[str, Probe] = {}
        self._samples: dict[str, list[int]] = {}  # passes, those with one sample, and the most
        self._alone: dict[str, str] = {}  # where one sample was learned from first
        self._frozen: dict[str, FrozenLayer] = {}
        self._passes: dict[str, tuple[int, int]] = {}  # of each module since an optimizer began

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Count the passes that learn, and those from one sample through a layer that is awake."""
        if not (forward.gradients and forward.training and forward.samples):
            return
        known = self._samples.setdefault(forward.module, [0, 0, 0])
        known[0] += 1
        known[2] = max(known[2], forward.samples)
        self._follow_frozen(forward.module, module)
        if forward.samples == 1 < known[2] and any(p.training for p in _batch_norms(module)):
            known[1] += 1
            self._alone.setdefault(forward.module, caller(4))

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at the statistics of a module in evaluation mode, once between two steps."""
        if module.training or not self.recorder.steps:
            return
        layers = self._layers.get(module)
        if layers is None:
            layers = self._layers[module] = [weakref.ref(p) for p in _batch_norms(module)]
        looks, step = self._looks.get(module, (0, -1))
        # Later looks are further apart: an average takes some steps before it is known as one.
        if layers and looks < _LOOKS and self.recorder.steps >= max(step + 1, step * 5 // 4):
            self._looks[module] = looks + 1, self.recorder.steps
            with suppress(Exception):  # whatever somebody's layers do when they are looked at
                self._look(forward, module, [layer for ref in layers if (layer := ref())])

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        yield from (*self._found.values(), *self._brief.values(), *self._kept.values())
        for name, source in self._alone.items():
            passes, alone, most = self._samples[name]
            if _OFTEN * alone <= passes:
                yield make_probe("alone", alone, most, label=name, source=source)
        self.looked |= {"alone"} if self._samples else set()
        for name, frozen in self._frozen.items():
            if frozen.taken >= _FROZEN_PASSES:
                yield make_probe("frozen statistics", frozen.taken, frozen.stays, label=name)

    def frozen_layers(self) -> dict[nn.Module, FrozenLayer]:
        """Return the frozen layers that are followed, but for those that are gone."""
        found = [(frozen.ref(), frozen) for frozen in self._frozen.values()]
        return {layer: frozen for layer, frozen in found if layer is not None}

    def _follow_frozen(self, name: str, module: nn.Module) -> None:
        """Look at frozen layers ever more rarely, anew where another optimizer has begun."""
        # What learned with one optimizer may be frozen before the next one begins.
        stage, (began, passes) = self.recorder.stages[-1], self._passes.get(name, (0, 0))
        passes = passes + 1 if began == stage else 1
        self._passes[name] = stage, passes
        since = passes - _FROZEN_AT
        if not since:
            self._look_for_frozen(module)
        elif since >= _FROZEN_PASSES and not since & (since - 1) and self._frozen:
            for layer in _batch_norms(module):
                frozen = self._frozen.get(self.recorder.names.module(layer))
                if frozen is not None and frozen.ref() is layer:
                    self.recorder.reads.ask(self, frozen.look(layer), frozen.take)

    def _look_for_frozen(self, module: nn.Module) -> None:
        """Take down the layers that are awake in a part of a module whose weights are frozen."""
        for layer in _batch_norms(module):
            name = self.recorder.names.module(layer)
            awake = layer.training and layer.affine and not layer.weight.requires_grad
            if awake and (len(self._frozen) < _LOOKS or name in self._frozen):
                around = _part_around(module, layer)
                self._frozen[name] = FrozenLayer(
                    weakref.ref(layer),
                    layer.num_batches_tracked.clone(),
                    layer.weight.detach().clone(),
                    layer.running_mean.clone(),
                    layer.running_var.clone(),
                    around,
                )

    def _look_for_brief(self, forward: Forward, asleep: list[Any]) -> None:
        """Take down the momentum of statistics that are hardly more than the last batch's."""
        low, high = _BRIEF
        brief = [each.momentum for each in asleep if low <= (each.momentum or 0.0) < high]
        if brief:
            named = {"label": forward.module, "source": forward.source}
            self._brief.setdefault(
                forward.module, make_probe("brief statistics", max(brief), len(brief), **named)
            )

    def _look(self, forward: Forward, module: nn.Module, layers: list[nn.Module]) -> None:
        """Tell of a layer whose statistics are still those that it was made with."""
        self.looked.add("statistics")
        asleep = [layer for layer in layers if not layer.training]
        self._look_for_brief(forward, asleep)
        student = self._followed_by(module)
        own_layers = _batch_norms(student) if student is not None else []
        look = _StatisticsLook(
            weakref.ref(module),
            forward.module,
            forward.source,
            self.recorder.steps,
            [self.recorder.names.module(layer) for layer in asleep],
            whole=asleep == layers,
        )
        numbers = [_numbers_of(asleep), _numbers_of(own_layers)] if asleep else []
        self.recorder.reads.ask(self, numbers, partial(self._take, look))

    def _take(self, look: "_StatisticsLook", numbers: list[torch.Tensor]) -> None:
        """Tell of a layer that is still as it was made, once its numbers are here."""
        own, followed = [each.tolist() for each in numbers] or [[], []]
        still = [(name, n) for name, (fresh, n, _) in zip(look.names, own, strict=True) if fresh]
        module = look.module()
        if look.whole and not still and module is not None:
            looks, _ = self._looks[module]
            if followed:
                self._compare(look, own, followed)
            elif looks >= _KNOWN:  # what has moved stays so, unless it is an average
                self._looks[module] = _LOOKS, self.recorder.steps
        if not still or look.called in self._found:
            return
        tracked = max(count for _, count in still)
        if tracked or not all(fresh for fresh, *_ in followed):
            self._found[look.called] = Probe(
                probe="statistics",
                measured=float(tracked),
                reference=float(len(still)),
                step=look.step,
                label=still[0][0],
                source=look.source,
            )

    def _compare(self, look: "_StatisticsLook", own: list[Any], followed: list[Any]) -> None:
        """See whether the statistics of an average stay, while those of its model move."""
        sums, seen = [total for *_, total in own], max(count for _, count, _ in followed)
        first, begun = self._averages.setdefault(look.called, (sums, seen))
        self._kept.pop(look.called, None)
        if sums != first:
            self._averages[look.called] = [], seen
        elif seen > begun:
            self._kept[look.called] = make_probe(
                "kept statistics",
                seen - begun,
                step=look.step,
                label=look.names[0],
                source=look.source,
            )

    def _followed_by(self, module: nn.Module) -> nn.Module | None:
        """Return the model that a module is an average of, if it is one that moves."""
        own = {id(part) for part in module.modules()}
        for copy, moved in self.recorder.watcher(AveragedCopies).moves():
            student = copy.follows.module()
            if moved and student is not None and id(copy.source) in own:
                return student
        return None


def _batch_norms(module: nn.Module) -> list[Any]:
    """Return the layers of a module that keep batch statistics."""
    kept = [m for m in module.modules() if isinstance(m, _BATCH_NORM) and m.track_running_stats]
    return [m for m in kept if m.running_mean is not None and m.num_batches_tracked is not None]


def _part_around(
    module: nn.Module, layer: nn.Module
) -> "list[tuple[weakref.ref[torch.Tensor], int]]":
    """Return the weights of the innermost part that has some around a layer, if all are frozen."""
    names = [name for name, inner in module.named_modules() if inner is layer]
    part = names[0] if names else ""
    while part:
        part = part.rpartition(".")[0]
        weights = [p for p in module.get_submodule(part).parameters() if p.dim() > 1]
        if weights or not part:
            learns = any(p.requires_grad for p in weights)
            return [] if learns else [(weakref.ref(p), p._version) for p in weights]  # noqa: SLF001
    return []


def _numbers_of(layers: list[Any]) -> torch.Tensor:
    """Return whether statistics are those that they were made with, their batches, and a sum."""
    with torch.no_grad():
        fresh = [~one.running_mean.any() & (one.running_var == 1).all() for one in layers]
        tracked = [one.num_batches_tracked for one in layers]
        sums = [(one.running_mean.double() + one.running_var.double()).sum() for one in layers]
        each = [
            torch.stack([a.to(total), b.to(total), total])
            for a, b, total in zip(fresh, tracked, sums, strict=True)
        ]
    return torch.stack([row.to(each[0].device) for row in each]) if each else torch.zeros(0, 3)
