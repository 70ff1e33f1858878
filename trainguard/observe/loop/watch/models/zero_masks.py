"""Watches products of what is learned with a mask that is zero everywhere."""

from collections.abc import Iterable
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
        nodes = autograd_graph.below(loss.grad_fn, _MOST_NODES)
        with torch.no_grad():
            found = {shape for node in nodes if (shape := _zero_in(node))}
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


def _zero_in(node: Node) -> tuple[int, ...]:
    """Return the shape of a constant that leaves nothing of what it is multiplied with."""
    kind = autograd_graph.kind_of(node)
    if kind not in _KEPT:
        return ()
    with suppress(RuntimeError):  # what was changed since cannot be read
        for name in _KEPT[kind]:
            mask = autograd_graph.saved(node, name)
            if not isinstance(mask, torch.Tensor):  # a number multiplies as well
                continue
            if mask.is_sparse or not _LEAST <= mask.numel() <= _LARGEST:
                continue
            gone = bool(mask.all()) if kind == "MaskedFillBackward" else not bool(mask.any())
            if gone and not mask.requires_grad:
                return tuple(mask.shape[1:]) or (1,)  # batches may differ in their number of rows
    return ()
