"""Watches maps of classes that are resized as pictures are: between 1 and 3 comes a 2."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.nn import functional

from trainguard.events.base import Event
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.fingerprint import hash_rows
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_BLENDS = {"linear", "bilinear", "trilinear", "bicubic", "area"}
_FEWEST, _SEVERAL = 3, 64  # numbers in a map of classes: two are a mask, many are a picture
_LARGEST = 2**22  # elements of what is resized
_MOST = 512  # maps that are remembered


class BlendedClasses(Watcher):
    """The Probe event "blended": rows of a loss's targets that are whole parts of a blend."""

    makes = ("Probe:blended",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._blends: dict[int, str] = {}  # the line that made each
        self._rows = self._found = 0  # targets that were looked at, and those that are blends
        self._source = ""

    def install(self, patches: Patches) -> None:
        """Listen to what is resized, and to the calls of loss functions."""
        patches.redirect(functional.interpolate, tell_after(self._see_resized))
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self.looked |= {"blended"} if self._rows else set()
        if self._found:
            yield make_probe("blended", self._found, self._rows, source=self._source)

    def _see_resized(self, resized: torch.Tensor, /, *args: Any, **kwargs: Any) -> None:
        """Remember blends of classes that an `interpolate` has made."""
        mode = args[3] if len(args) > 3 else kwargs.get("mode")
        if mode in _BLENDS and len(self._blends) < _MOST and self.recorder.is_looking():
            self._look(args[0] if args else kwargs.get("input"), resized)

    @shielded
    def _look(self, given: Any, resized: torch.Tensor) -> None:
        """Remember what a map of classes becomes, once its fractions are dropped or rounded."""
        if not _is_plain(given) or not _is_plain(resized):
            return
        with torch.no_grad():
            numbers = torch.unique(given)
            if not _FEWEST <= len(numbers) <= _SEVERAL or not torch.equal(numbers, numbers.trunc()):
                return
            right = functional.interpolate(given, size=resized.shape[2:], mode="nearest")
            for whole in (resized.trunc(), resized.round()):
                rows = hash_rows(whole.long().flatten(0, 1))
                own = set(rows) - set(hash_rows(right.long().flatten(0, 1)))
                if not torch.equal(whole, resized):
                    self._blends |= dict.fromkeys(own, caller())

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look for the blends among the targets of a loss."""
        if not self._blends or tally.function not in CROSS_ENTROPIES or not value.requires_grad:
            return
        if not target.is_cpu or target.is_floating_point() or target.dim() < 2:
            return
        with suppress(RuntimeError):  # tensors of foreign kinds refuse what they like
            found = [row for row in hash_rows(target.long()) if row in self._blends]
            self._rows += len(target)
            self._found += len(found)
            self._source = self._blends[found[0]] if found else self._source


def _is_plain(tensor: Any) -> bool:
    """Say whether a tensor may be a small map of classes on the CPU."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.is_floating_point()
        and not tensor.requires_grad
        and tensor.dim() > 2
        and 0 < tensor.numel() <= _LARGEST
    )
