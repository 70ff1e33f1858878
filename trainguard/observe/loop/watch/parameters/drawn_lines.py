"""Watches which line of the user's code has drawn or set the weights of a layer."""

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import PACKAGE, caller

_MOST = 4096  # matrices
_SETTERS = (
    *("constant_", "eye_", "dirac_", "normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_"),
    *("uniform_", "zeros_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_"),
    "xavier_uniform_",
)


class DrawnLines(Watcher):
    """Remembers where functions of torch.nn.init were last called for a matrix; makes nothing."""

    makes = ()

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._lines: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}

    def install(self, patches: Patches) -> None:
        """Listen to what draws or sets all weights of a layer."""
        for name in _SETTERS:
            patches.replace(nn.init, name, tell_after(self._see_set))

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
        if matrix and len(self._lines) < _MOST and not _is_layers_own():
            self._lines[id(tensor)] = weakref.ref(tensor), caller()


def _is_layers_own() -> bool:
    """Say whether a layer of torch is drawing its first weights."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 the one way to look at callers
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.nn.modules.")
