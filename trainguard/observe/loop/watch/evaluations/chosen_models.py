"""Watches callbacks of Lightning that choose a model, or the end, by a metric and its direction."""

import sys
from collections.abc import Iterable
from typing import Any

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.heap import living

_STEPS = {4, 64}  # when it is looked: callbacks are there early on, in a second fit too
_CALLBACKS = {
    f"{package}.callbacks.{module}": kind
    for package in ("lightning.pytorch", "pytorch_lightning")
    for module, kind in (
        ("model_checkpoint", "ModelCheckpoint"),
        ("early_stopping", "EarlyStopping"),
    )
}


class ChosenModels(Watcher):
    """The Probe event "chosen": the metric that a callback follows, and the mode it has."""

    makes = ("Probe:chosen",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: set[tuple[str, str, str]] = set()

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Look for the callbacks, where their modules have been imported."""
        if self.recorder.steps in _STEPS:
            kinds = [
                own
                for module, kind in _CALLBACKS.items()
                if isinstance(own := getattr(sys.modules.get(module), kind, None), type)
            ]
            for callback in [callback for kind in kinds for callback in living(kind)]:
                monitor, mode = (getattr(callback, name, None) for name in ("monitor", "mode"))
                if isinstance(monitor, str) and mode in ("min", "max"):
                    self._found.add((type(callback).__name__, monitor, mode))
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found; the direction is 1 where more is better."""
        for kind, monitor, mode in sorted(self._found):
            self.looked.add("chosen")
            direction = 1.0 if mode == "max" else -1.0
            yield make_probe("chosen", direction, 0.0, label=f"{kind} {monitor}")
