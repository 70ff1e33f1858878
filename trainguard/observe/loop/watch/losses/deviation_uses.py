"""Watches outputs that a likelihood of torch takes for a variance, and others for a deviation."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import user_frames
from trainguard.observe.tools.written_calls import name_of_third

_OUTPUTS = 8  # of a module
_DEVIATIONS = {"std", "stds", "sd", "stddev", "stdev", "sigma", "sigmas", "deviation"}
_Place = tuple[str, int]  # a module, and which of its outputs


class DeviationUses(Watcher):
    """
    The Probe event "deviation": what `gaussian_nll_loss` was given as a variance is none elsewhere.

    The same output of a module is the deviation of a `Normal`: measured is how often. It is 0
    where only the name of what is given, the label, says so.
    """

    makes = ("Probe:deviation",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._outputs: list[tuple[_Place, weakref.ref[torch.Tensor]]] = []
        self._variances: dict[_Place, str] = {}  # and where the loss was called
        self._deviations: dict[_Place, int] = {}
        self._named = ("", "")  # what a variance is called, and where
        self._known: set[int] = set()

    def install(self, patches: Patches) -> None:
        """Listen to losses, and to what a normal distribution is made of."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
        patches.replace(torch.distributions.Normal, "__init__", tell_after(self._on_normal))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what a module has just returned."""
        returned = list(tensors_in(output))[:_OUTPUTS]
        self._outputs = [
            ((forward.module, place), weakref.ref(each)) for place, each in enumerate(returned)
        ]

    def finish(self) -> Iterable[Event]:
        """Return an output that is both, or what is called a deviation and given as a variance."""
        both = [place for place in self._variances if place in self._deviations]
        name, source = self._named
        if both:
            module, number = both[0]
            uses, where = self._deviations[both[0]], self._variances[both[0]]
            label = f"{module} output {number}"
            yield make_probe("deviation", uses, label=label, source=where)
        elif name:
            yield make_probe("deviation", 0, label=name, source=source)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """See which output is the variance of a likelihood, at the first call of each place."""
        if tally.function != "gaussian_nll_loss" or id(tally) in self._known:
            return
        self._known.add(id(tally))
        frame, given = next(user_frames(1), None), (tally.options or {}).get("var")
        if frame is None or not isinstance(given, torch.Tensor):
            return
        self.looked.add("deviation")
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        for place, output in self._outputs:
            own = output()
            if own is not None and own.shape == given.shape and torch.equal(own.detach(), given):
                self._variances[place] = where
        name = name_of_third(frame.f_code, frame.f_lineno, "var")
        if set(name.lower().split("_")) & _DEVIATIONS and "2" not in name:
            self._named = name, where

    @shielded
    def _on_normal(
        self, made: None, normal: Any, loc: Any = None, scale: Any = None, *_: Any, **__: Any
    ) -> None:
        """See which output is the deviation of a normal distribution."""
        for place, output in self._outputs:
            if scale is not None and output() is scale:
                self._deviations[place] = self._deviations.get(place, 0) + 1
