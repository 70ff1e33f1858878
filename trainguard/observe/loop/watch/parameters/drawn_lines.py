"""Watches which line of the user's code has drawn or set the weights of a layer."""

import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import PACKAGE, caller

_MOST = 4096  # matrices
_TRAININGS = 32
_STEPS = 16  # after which something has been learned
_SETTERS = (
    *("constant_", "eye_", "dirac_", "normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_"),
    *("uniform_", "zeros_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_"),
    "xavier_uniform_",
)


@dataclass(slots=True)
class _Training:
    """What an optimizer has trained: its matrices, and which of them were drawn anew after that."""

    window: Window
    matrices: dict[int, "weakref.ref[torch.Tensor]"]
    anew: dict[int, str] = field(default_factory=dict)  # the lines

    def holds(self, tensor: torch.Tensor) -> bool:
        """Say whether it has trained a matrix."""
        known = self.matrices.get(id(tensor))
        return known is not None and known() is tensor


class DrawnLines(Watcher):
    """
    Remembers where functions of torch.nn.init were last called for a matrix.

    And the Probe event "drawn anew": a training that goes on with matrices of another one, and with
    matrices of its own, where all the former were drawn anew between. measured: how many.
    """

    makes = ("Probe:drawn anew",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._lines: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._trainings: list[_Training] = []
        self._begun = set[int]()  # ids of windows whose first steps were seen
        self._found: Event | None = None

    def install(self, patches: Patches) -> None:
        """Listen to what draws or sets all weights of a layer."""
        for name in _SETTERS:
            patches.replace(nn.init, name, tell_after(self._see_set))

    def before_step(self, window: Window) -> Columns:
        """See with what an optimizer begins, and what it has trained once it has made steps."""
        if id(window) not in self._begun and len(self._begun) < _TRAININGS:
            self._begun.add(id(window))
            self._see_start(_matrices_of(window))
        known = any(training.window is window for training in self._trainings)
        if window.index >= _STEPS and not known and len(self._trainings) < _TRAININGS:
            matrices = {id(p): weakref.ref(p) for p in _matrices_of(window)}
            self._trainings.append(_Training(window, matrices))
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the training that has lost what it goes on with."""
        return [] if self._found is None else [self._found]

    def _see_start(self, matrices: list[torch.Tensor]) -> None:
        """See whether something goes on with what was trained, and whether that is still there."""
        for training in self._trainings:
            shared = [p for p in matrices if training.holds(p)]
            if not shared or len(shared) == len(matrices):
                continue  # a model, or a head, that begins once more with nothing of its own
            self.looked.add("drawn anew")
            lines = [training.anew.get(id(p), "") for p in shared]
            if all(lines):
                steps = training.window.index
                self._found = make_probe("drawn anew", len(lines), step=steps, source=lines[0])

    def find_line(self, weights: Iterable[torch.Tensor]) -> str:
        """Return the line for the first of some weights that one is known for."""
        for weight in weights:
            ref, line = self._lines.get(id(weight), (lambda: None, ""))
            if ref() is weight:
                return line
        return ""

    @shielded
    def _see_set(self, _: Any, tensor: Any, *__: Any, **___: Any) -> None:
        """Remember the line that sets a matrix of weights, where no layer does it by itself."""
        matrix = isinstance(tensor, torch.Tensor) and tensor.dim() > 1
        for training in self._trainings if matrix else ():
            if training.holds(tensor):
                training.anew[id(tensor)] = caller()
        if matrix and len(self._lines) < _MOST and not _is_layers_own():
            self._lines[id(tensor)] = weakref.ref(tensor), caller()


def _matrices_of(window: Window) -> list[torch.Tensor]:
    """Return the matrices that an optimizer trains."""
    return [p for p in window.parameters if p.dim() > 1][:_MOST]


def _is_layers_own() -> bool:
    """Say whether a layer of torch is drawing its first weights."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 the one way to look at callers
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.nn.modules.")
