"""Watches whether steps move parameters of few digits, or are lost when they are rounded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then
from trainguard.observe.loop.window import Window, gradient_of
from trainguard.observe.tools.fingerprint import sample_elements

_COARSE = {torch.bfloat16, torch.float16}  # 8 and 11 bits: a 256th, or a 2048th, of a weight
_PARAMETERS = 32
_ELEMENTS = 64
_FEWEST = 32.0  # sampled elements with a gradient
_SHOWN = 5  # looks: the first steps of a warm-up are small


@dataclass
class _Share:
    """An optimizer and its dtype: the least share of elements that stood still, of all looks."""

    window: Window
    dtype: torch.dtype
    least: torch.Tensor
    looks: int = 0


class RoundedUpdates(Watcher):
    """
    The Probe events "rounding", of optimizers of torch that hold parameters of 16 bits.

    measured: the least share of these elements, of those with a gradient, that had the same value
        before and after a step, of all looks; reference: the resolution of their dtype, as a share
        of a number; step: how many looks; label: the optimizer and the dtype.
    """

    makes = ("Probe:rounding",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._before: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}
        self._shares: dict[int, _Share] = {}

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Remember some elements, and their gradients."""
        optimizer = None if window.optimizer is None else window.optimizer()
        if window.is_surveyed and type(optimizer).__module__.startswith("torch.optim"):
            coarse = [p for p in window.parameters if p.dtype in _COARSE]
            chosen = coarse[:: -(-len(coarse) // _PARAMETERS) or 1]
            pairs = [(p, g) for p in chosen if (g := gradient_of(p)) is not None]
            kept = [(p, _sample(p).clone(), _sample(g) != 0) for p, g in pairs]
            self._before[id(window)] = [each for each in kept if each[1].shape == each[2].shape]
        return {}

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Count those that stand where they stood."""
        before = self._before.pop(id(window), [])
        if not before:
            return {}
        home = before[0][1].device
        still = torch.cat([(_sample(p) == old).to(home) for p, old, _ in before])
        learns = torch.cat([learns.to(home) for *_, learns in before])
        count = learns.sum()
        share = (still & learns).sum() / count.clamp(min=1)
        share = torch.where(count >= _FEWEST, share, torch.zeros_like(share))
        seen = self._shares.get(id(window))
        if seen is None or seen.window is not window:
            seen = self._shares[id(window)] = _Share(window, before[0][0].dtype, share)
        seen.least = torch.minimum(seen.least, share)
        seen.looks += 1
        self.looked |= {"rounding"} if seen.looks == _SHOWN else set()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was seen of each optimizer."""
        for seen in self._shares.values():
            if seen.looks >= _SHOWN:
                yield Probe(
                    probe="rounding",
                    measured=float(seen.least),
                    reference=torch.finfo(seen.dtype).eps,
                    step=seen.looks,
                    label=f"{seen.window.name}, {str(seen.dtype).removeprefix('torch.')}",
                    source=seen.window.source,
                )


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return some elements."""
    return sample_elements(tensor.detach(), _ELEMENTS)
