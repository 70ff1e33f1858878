"""Watches for optimizers that are made anew, so that what the last one had gathered is lost."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.loop import RunGrowth
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window

_MOST_LIVES = 64
Key = tuple[str, int, int, int]


@dataclass(slots=True)
class _Succession:
    """
    The optimizers of one class for the same parameters, one after the other.

    made: how many steps the latest has made, after which the first parameter had its version.
    stateful: whether it had gathered anything. lives: the steps that each of them made.
    """

    parameter: weakref.ref[torch.Tensor]
    made: int = 0
    version: int = -1
    stateful: bool = False
    lives: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    name: str = ""
    source: str = ""


class RebuiltOptimizers(Watcher):
    """The RunGrowth events of optimizers."""

    makes = ("RunGrowth",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._successions: dict[Key, _Succession] = {}

    def before_step(self, window: Window) -> Columns:
        """See whether a first step goes on where another optimizer has left off."""
        found = self._find(window)
        if found is None or window.index:
            return {}
        optimizer = window.optimizer() if window.optimizer is not None else None
        same = found.version == window.parameters[0]._version  # noqa: SLF001 the only one
        lost = same and found.stateful and found.made and not getattr(optimizer, "state", True)
        if lost and len(found.lives) < _MOST_LIVES:
            found.lives.append(found.made)
            found.steps.append(self.recorder.steps)
            found.source = window.source
        found.made = 0
        return {}

    def after_step(self, window: Window) -> Columns:
        """Remember what the step has left behind."""
        found = self._find(window)
        optimizer = window.optimizer() if window.optimizer is not None else None
        if found is not None and optimizer is not None:
            found.made = window.index + 1
            found.version = window.parameters[0]._version  # noqa: SLF001
            found.stateful = found.stateful or _has_state(optimizer)
            found.name = type(optimizer).__name__
        return {}

    def finish(self) -> Iterator[Event]:
        """Return the successions of three optimizers or more."""
        for found in self._successions.values():
            if len(found.lives) >= 2:
                yield RunGrowth(
                    kind="optimizers",
                    steps=tuple(found.steps),
                    counts=tuple(range(2, len(found.lives) + 2)),
                    among=tuple(found.lives),
                    name=found.name,
                    source=found.source,
                )

    def _find(self, window: Window) -> _Succession | None:
        """Return what is known of the optimizers of a window's parameters."""
        held = window.parameters
        if window.optimizer is None or not held:
            return None
        key = (type(window.optimizer()).__name__, id(held[0]), id(held[-1]), len(held))
        found = self._successions.get(key)
        if found is None or found.parameter() is not held[0]:
            found = self._successions[key] = _Succession(weakref.ref(held[0]))
        return found


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether an optimizer has gathered more than a count of its steps."""
    first: Any = next(iter(optimizer.state.values()), {})
    values = first.values() if isinstance(first, dict) else ()
    return any(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values)
