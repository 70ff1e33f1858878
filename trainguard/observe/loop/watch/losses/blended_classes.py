"""Watches maps of classes that are resized as pictures are: between 1 and 3 comes a 2."""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

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
_MAPS = 3  # axes of several maps
_LARGEST = 2**22  # elements of what is resized
_MOST = 512  # maps that are remembered
_NEWEST = 32  # of these that parts are looked for in, two of each that is resized
_LOOKS, _PARTS = 8, 2  # losses, and targets of each, whose parts are looked for
_LARGEST_MAP = 2**18  # elements of a map that is kept for that
_ANCHORS = 16  # columns of a row by which its place is found, before all of it is compared


class _Blend(NamedTuple):
    """A map (H, W) of blended classes, what it is where they are not, and the line that made it."""

    whole: torch.Tensor
    right: torch.Tensor
    source: str

    def has_part(self, part: torch.Tensor, place: int) -> bool:
        """
        Say whether a map (H, W) was cut out of it, at a place where classes are blended.

        place: the row of the part by which it is looked for.
        """
        width = part.shape[1]
        for row, column in self._find_row(part[place]):
            rows = slice(row - place, row - place + len(part))
            columns = slice(column, column + width)
            inside = rows.start >= 0 and torch.equal(self.whole[rows, columns], part)
            if inside and not torch.equal(self.right[rows, columns], part):
                return True
        return False

    def _find_row(self, row: torch.Tensor) -> list[list[int]]:
        """Return where a row may stand in the map, row and column, by where its class changes."""
        changes = (row.diff().nonzero().flatten() + 1).tolist()
        anchors = [0, *changes[:: -(-len(changes) // _ANCHORS) or 1]]
        width = max(0, self.whole.shape[1] - len(row) + 1)  # none of a row that is wider
        alike = [self.whole[:, place : place + width] == row[place] for place in anchors]
        places: list[list[int]] = torch.stack(alike).all(0).nonzero().tolist()
        return places


class BlendedClasses(Watcher):
    """The Probe event "blended": rows of a loss's targets that are whole parts of a blend."""

    makes = ("Probe:blended",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._blends: dict[int, str] = {}  # the line that made each
        self._newest: deque[_Blend] = deque(maxlen=_NEWEST)
        self._looks = 0
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
            nearest = functional.interpolate(given, size=resized.shape[2:], mode="nearest")
            right = nearest.long().flatten(0, 1)
            for numbers in (resized.trunc(), resized.round()):
                whole = numbers.long().flatten(0, 1)
                own = set(hash_rows(whole)) - set(hash_rows(right))
                if not torch.equal(numbers, resized):
                    self._blends |= dict.fromkeys(own, caller())
                    self._keep(whole, right)

    def _keep(self, whole: torch.Tensor, right: torch.Tensor) -> None:
        """Keep the latest maps (N, H, W) that are not too large, for parts of them."""
        if whole.dim() == _MAPS and whole[0].numel() <= _LARGEST_MAP and self._looks < _LOOKS:
            pairs = [*zip(whole.short(), right.short(), strict=True)][-_NEWEST:]
            self._newest.extend(_Blend(*pair, caller()) for pair in pairs)

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look for the blends among the targets of a loss."""
        if not self._blends or tally.function not in CROSS_ENTROPIES or not value.requires_grad:
            return
        if not target.is_cpu or target.is_floating_point() or target.dim() < 2:
            return
        with suppress(RuntimeError):  # tensors of foreign kinds refuse what they like
            found = [self._blends[row] for row in hash_rows(target.long()) if row in self._blends]
            looked = target
            if not found and target.dim() == _MAPS:
                looked = target[: _PARTS if self._looks < _LOOKS else 0]
                found = [line for each in looked if (line := self._find_whole(each))]
                self._looks += 1
            self._rows += len(looked)
            self._found += len(found)
            self._source = found[0] if found else self._source

    def _find_whole(self, part: torch.Tensor) -> str:
        """Return the line that blended the map that a part was cut out of, and perhaps turned."""
        part = part.short()
        for turned in (part, part.flip(-1), part.flip(-2)):
            place = _find_telling_row(turned)
            for blend in reversed(self._newest):
                if place is not None and blend.has_part(turned, place):
                    return blend.source
        return ""


def _find_telling_row(part: torch.Tensor) -> int | None:
    """Return the row of a map (H, W) with the most classes; None where all have few."""
    kinds = part.sort(1).values.diff(dim=1).ne(0).sum(1) + 1
    return int(kinds.argmax()) if int(kinds.max()) >= _FEWEST else None


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
