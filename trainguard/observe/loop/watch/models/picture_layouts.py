"""Watches pictures: whether their numbers stand in memory as their channels come last."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_LOOKS = 6  # passes that are looked at: what is so in all of them is so of the data
_WAITS = 32  # passes that learn, after which no more pictures are waited for
_FEWEST, _CHANNELS = 3, 8  # of colours: two may be a board, or sides that alternate
_LEAST = 8  # places along each side
_PICTURES = 64  # of a pass
_PLACES = 20_000  # of them: a correlation of as many is known to 0.007
_ALIKE = 0.05  # the correlation of neighbours in any picture, be it ever so noisy
# Of that, at most, where it is read in another order, either way: a pattern that alternates, and is
# alike again after as many places as there are channels, has half of it, of the other sign.
_ROUGH = 0.4


class PictureLayouts(Watcher):
    """
    The Probe event "interleaved": passes with (N, C, H, W) whose numbers are those of (N, H, W, C).

    Read so, neighbours are alike in both directions; read as they are given, they are not.
    reference: all passes that were looked at; label: the shape.
    """

    makes = ("Probe:interleaved",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = self._looks = self._found = 0
        self._label = self._source = ""

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at what the first passes that learn are given."""
        given = self.recorder.given[0] if self.recorder.given else None
        if not forward.gradients or given is None:
            return
        self._passes += 1
        if self._looks >= _LOOKS or self._passes > _WAITS:
            self.recorder.dismiss(self)
        elif _may_be_pictures(given):
            self._looks += 1
            if _is_interleaved(given.detach()[:_PICTURES]):
                self._found += 1
                self._label = "(" + ",".join(map(str, ("N", *given.shape[1:]))) + ")"
                self._source = self._source or caller(3)

    def finish(self) -> Iterable[Event]:
        """Return how many passes were."""
        self.looked |= {"interleaved"} if self._looks else set()
        if self._found:
            label, source = self._label, self._source
            yield make_probe("interleaved", self._found, self._looks, label=label, source=source)


def _may_be_pictures(given: torch.Tensor) -> bool:
    """Say whether an input is (N, C, H, W), of some channels and many places."""
    if not has_rows(given) or given.dim() != 4 or not given.is_floating_point():
        return False
    _, channels, height, width = given.shape
    few = _FEWEST <= channels <= _CHANNELS and min(height, width) >= _LEAST
    return given.is_cpu and few and given.is_contiguous() and given.numel() >= _PLACES


def _is_interleaved(given: torch.Tensor) -> bool:
    """Say whether neighbours are alike where channels are read last, and not as they are."""
    count, channels, height, width = given.shape
    last = given.reshape(count, height, width, channels).permute(0, 3, 1, 2)
    as_given, as_last = (_alike_neighbours(pictures) for pictures in (given, last))
    return min(as_last) >= _ALIKE and abs(min(as_given)) <= _ROUGH * min(as_last)


def _alike_neighbours(pictures: torch.Tensor) -> tuple[float, float]:
    """Return how neighbours in a column, and in a row, correlate."""
    numbers = pictures.double()
    rest = numbers - numbers.mean(dim=(0, 2, 3), keepdim=True)
    square = float(rest.square().mean())
    if not square > 0:
        return 0.0, 0.0
    column = float((rest[:, :, 1:] * rest[:, :, :-1]).mean()) / square
    return column, float((rest[..., 1:] * rest[..., :-1]).mean()) / square
