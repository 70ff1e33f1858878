"""Watches what the next value of a series is predicted from: perhaps from that value."""

from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.watch.losses.loss_calls import DISTANCES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.models.future_probe import NEXT, FutureProbe
from trainguard.observe.loop.watch.models.module_copy import CopyableCall
from trainguard.observe.tools.patches import Patches

_LEAST_LENGTH = 8
_COPIED = 0.5  # of the targets that are the value itself: a series that hardly moves says nothing
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 what all of them derive from


class SeriesProbe(FutureProbe):
    """
    The Probe event "future" for series of numbers: a value is edited, and earlier outputs stay.

    Only where a distance of torch holds outputs (N, T), (N, T, D) or (N, D, T) against the values
    that follow those of the one input of that shape. Models with batch norms are left alone: their
    statistics are those of all places, in training.
    """

    probe = "future"
    rounding = 1e-3

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._axis = 1

    def install(self, patches: Patches) -> None:
        """Be told of losses."""
        if self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.append(self._on_distance)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether exactly one input holds the values that are to be predicted."""
        return super().fits(call) and not any(
            isinstance(module, _BATCH_NORM) for module in call.module.modules()
        )

    def is_of(self, tokens: Any, target: torch.Tensor) -> bool:
        """Say whether targets are the next values of a series."""
        axes = [axis for axis in (1, 2) if _follows(tokens, target, axis)]
        self._axis = axes[0] if axes else 1
        return len(axes) == 1

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return f"next value, {module}"

    def edit(self, tokens: torch.Tensor, middle: int) -> torch.Tensor:
        """Return a series of which one value is another one."""
        edited = tokens.clone()
        edited.select(self._axis, middle).add_(2 * tokens.std() + 1e-3)
        return edited

    def length_of(self, tokens: torch.Tensor) -> int:
        """Return how many steps in time there are."""
        return tokens.shape[self._axis]

    def scores(self, output: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor | None:
        """Return the first output with values for each step in time, (N, T, ...)."""
        count, length = len(tokens), tokens.shape[self._axis]
        for tensor in output:
            if tensor.dim() in (2, 3) and tensor.is_floating_point() and len(tensor) == count:
                axis = self._axis if tensor.dim() > self._axis else 1
                if tensor.shape[axis] == length:
                    return tensor.movedim(axis, 1).clone()
        return None

    def _on_distance(self, tally: LossCalls, scores: Any, target: Any, _value: Any) -> None:
        """Remember what an output is to come near to, while something is to be tried."""
        if not self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.remove(self._on_distance)
        elif tally.function in DISTANCES and not tally.evaluation and not target.requires_grad:
            self.note_target(target.detach(), scores.grad_fn)


def _follows(series: Any, target: torch.Tensor, axis: int) -> bool:
    """Say whether targets are what stands one place further in a series, up to its end."""
    if not isinstance(series, torch.Tensor) or not series.is_floating_point():
        return False
    if series.dim() not in (2, 3) or series.dim() <= axis or series.shape[axis] < _LEAST_LENGTH:
        return False
    alike = target.shape[:axis] == series.shape[:axis] and target.dim() == series.dim()
    kept = target.shape[axis] if alike else 0
    if not _LEAST_LENGTH <= kept <= series.shape[axis] or target.dtype != series.dtype:
        return False
    rest = [size for place, size in enumerate(target.shape) if place != axis]
    if rest != [size for place, size in enumerate(series.shape) if place != axis]:
        return False
    last = series.shape[axis]
    own = series.detach().narrow(axis, last - kept, kept)
    wanted = target.to(series.device).narrow(axis, 0, kept - 1)
    ahead = (own.narrow(axis, 1, kept - 1) == wanted).double().mean()
    copied = (own.narrow(axis, 0, kept - 1) == wanted).double().mean()
    # What turns round is moved along a ring, as a wave is: there is no time in it.
    turned = torch.equal(target.select(axis, kept - 1).to(own), own.select(axis, 0))
    return float(ahead) >= NEXT and float(copied) < _COPIED and not turned
