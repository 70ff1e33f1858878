"""Watches products of what is learned with a mask that is zero everywhere."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 8, 16, 32, 64, 128, 256, 512}  # that are looked at: a mask may open later on
_MOST_NODES = 20000
_LEAST = 8  # elements: a weight of a term that is zero is one number, and is meant
_LARGEST = 2**22
# What an operation keeps of the other factor, or of what it fills.
_KEPT = {
    "BmmBackward": ("self", "mat2"),
    "MaskedFillBackward": ("mask",),
    "MmBackward": ("self", "mat2"),
    "MulBackward": ("self", "other"),
}


class ZeroMasks(Watcher):
    """The Probe event "zero mask": a product with nothing but zeros, in every look."""

    makes = ("Probe:zero mask",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks = 0
        self._shapes: set[tuple[int, ...]] = set()  # of masks that were zero in each look
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the products that a loss is made of."""
        if self.recorder.steps not in _STEPS or loss.grad_fn is None or not loss.is_cpu:
            return  # elsewhere each mask would be waited for
        if self._looks and not self._shapes:
            self.recorder.dismiss(self)
            return
        nodes = [*autograd_graph.below(loss.grad_fn, _MOST_NODES)]
        with torch.no_grad():
            shut = {mask.shape for node in nodes for mask in _masks_of(node, full=False)}
            # Where all is sent past one of two parts, the other one's mask is full.
            sent = {mask.shape for node in nodes for mask in _masks_of(node, full=True) if shut}
        found = {tuple(shape[1:]) or (1,) for shape in shut - sent}  # batches differ in their rows
        self._shapes = found & self._shapes if self._looks else found
        self._looks += 1
        self._source = caller()

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._shapes:
            yield Probe(
                probe="zero mask",
                measured=float(self._looks),
                reference=float(self._looks),
                label=str(min(self._shapes)),
                source=self._source,
            )


def _masks_of(node: Node, *, full: bool) -> Iterator[torch.Tensor]:
    """Yield the constants of a product that are one everywhere, or leave nothing of the rest."""
    kind = autograd_graph.kind_of(node)
    with suppress(RuntimeError):  # what was changed since cannot be read
        for name in _KEPT.get(kind, ()):
            mask = autograd_graph.saved(node, name)
            if not isinstance(mask, torch.Tensor) or mask.requires_grad or mask.is_sparse:
                continue  # a number multiplies as well
            if not _LEAST <= mask.numel() <= _LARGEST:
                continue
            if kind == "MaskedFillBackward":
                is_meant = bool(mask.all()) and not full
            else:
                is_meant = bool((mask == 1).all()) if full else not bool(mask.any())
            if is_meant:
                yield mask
