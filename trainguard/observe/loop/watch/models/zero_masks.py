"""Watches products of what is learned with a mask that is zero everywhere."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
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
        if self.recorder.steps not in _STEPS or loss.grad_fn is None:
            return
        if self._looks and not self._shapes:
            self.recorder.dismiss(self)
            return
        nodes = autograd_graph.below(loss.grad_fn, _MOST_NODES)
        with torch.no_grad():
            masks = [mask for node in nodes for mask in _masks_of(node)]
        shapes = [tuple(shape[1:]) or (1,) for shape, *_ in masks]  # batches differ in their rows
        flags = [flag for _, *both in masks for flag in both]
        self.recorder.reads.ask(self, flags, partial(self._take, shapes, caller()))

    def _take(self, shapes: list[tuple[int, ...]], source: str, flags: list[torch.Tensor]) -> None:
        """Keep the shapes of which a mask was shut, and no other one was full."""
        shut = {shape for shape, flag in zip(shapes, flags[::2], strict=True) if flag}
        # Where all is sent past one of two parts, the other one's mask is full.
        found = shut - {shape for shape, flag in zip(shapes, flags[1::2], strict=True) if flag}
        self._shapes = found & self._shapes if self._looks else found
        self._looks += 1
        self._source = source

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


def _masks_of(node: Node) -> Iterator[tuple[torch.Size, torch.Tensor, torch.Tensor]]:
    """
    Yield the constants of a product: their shape, whether one is shut, and whether it is full.

    A mask that is shut leaves nothing of the rest; one that is full leaves all of it. Each is a
    tensor where the mask is: elsewhere than on the host it is not waited for.
    """
    kind = autograd_graph.kind_of(node)
    with suppress(RuntimeError):  # what was changed since cannot be read
        for name in _KEPT.get(kind, ()):
            mask = autograd_graph.saved(node, name)
            if not isinstance(mask, torch.Tensor) or mask.requires_grad or mask.is_sparse:
                continue  # a number multiplies as well
            if not _LEAST <= mask.numel() <= _LARGEST:
                continue
            if kind == "MaskedFillBackward":
                yield mask.shape, mask.all(), mask.new_zeros((), dtype=torch.bool)
            else:
                yield mask.shape, ~mask.any(), (mask == 1).all()
