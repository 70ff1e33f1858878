"""Watches whether an optimizer that divides by its gradients divides by its epsilon instead."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import NAdam, Optimizer, RAdam, RMSprop

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.fingerprint import sample_elements
from trainguard.observe.tools.local_values import is_transforming

# Those of torch that add the epsilon to the root; optimizers of others may add it to the square.
_ADDED: tuple[type[Optimizer], ...] = (torch.optim.Adam, torch.optim.AdamW, NAdam, RAdam, RMSprop)
_PARAMETERS = 32
_ELEMENTS = 64
_FEWEST = 32.0  # sampled elements with a gradient: a temperature, or a bias, tells nothing
_SHOWN = 5  # looks: zero heads, and averages that have just begun, are not the run


@dataclass
class _Group:
    """A group of parameters: the least share of elements below its epsilon, of all looks."""

    window: Window
    place: int
    epsilon: float
    least: torch.Tensor
    looks: int = 0


class Epsilons(Watcher):
    """
    The Probe events "epsilon", of groups of optimizers of torch that adapt, and divide by it.

    measured: the least share of elements, of those with a gradient, whose root of averaged squares
        is below the epsilon, of all looks; reference: the epsilon; step: how many looks; label: the
        optimizer and the number of the group.
    """

    makes = ("Probe:epsilon",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._groups: dict[tuple[int, int], _Group] = {}

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Look at what the step was divided by."""
        optimizer = None if window.optimizer is None else window.optimizer()
        if isinstance(optimizer, _ADDED) and window.is_surveyed and not is_transforming():
            for place, group in enumerate(optimizer.param_groups):
                roots = list(_roots(optimizer, group))
                if roots and group["eps"] > 0:
                    self._look(window, place, group["eps"], roots)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was seen of each group."""
        for seen in self._groups.values():
            if seen.looks >= _SHOWN and seen.least > 0:
                yield Probe(
                    probe="epsilon",
                    measured=float(seen.least),
                    reference=seen.epsilon,
                    step=seen.looks,
                    label=f"{seen.window.name}, group {seen.place}",
                )

    def _look(self, window: Window, place: int, epsilon: float, roots: list[torch.Tensor]) -> None:
        """Take in a look at a group; its least share stays where it is computed."""
        values = torch.cat([root.to(roots[0].device) for root in roots])
        live = values > 0  # what has no gradient divides nothing
        count = live.sum()
        share = (live & (values < epsilon)).sum() / count.clamp(min=1)
        share = torch.where(count >= _FEWEST, share, torch.zeros_like(share))
        seen = self._groups.get((id(window), place))
        if seen is None or seen.window is not window or seen.epsilon != epsilon:
            seen = _Group(window, place, epsilon, share)
            self._groups[id(window), place] = seen
        seen.least = torch.minimum(seen.least, share.to(seen.least.device))
        seen.looks += 1
        self.looked |= {"epsilon"} if seen.looks == _SHOWN else set()


def _roots(optimizer: Optimizer, group: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield a sample of the roots that each parameter of a group is divided by, but for epsilon."""
    held, known = group["params"], dict[float, torch.Tensor]()
    for parameter in held[:: -(-len(held) // _PARAMETERS) or 1]:
        state = optimizer.state.get(parameter, {})
        names = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
        squares = next((state[name] for name in names if name in state), None)
        if isinstance(squares, torch.Tensor) and squares.is_floating_point():
            root = sample_elements(squares, _ELEMENTS).float().sqrt()
            yield root / _correction(state["step"], group, known) if "betas" in group else root


def _correction(step: Any, group: dict[str, Any], known: dict[float, torch.Tensor]) -> torch.Tensor:
    """Return by what the root of an average that begins at zero is divided; mostly it is known."""
    waits = isinstance(step, torch.Tensor) and not step.is_cpu
    found = None if waits else known.get(float(step))
    if found is None:
        found = (1 - float(group["betas"][1]) ** torch.as_tensor(step, dtype=torch.float32)).sqrt()
        known |= {} if waits else {float(step): found}
    return found
