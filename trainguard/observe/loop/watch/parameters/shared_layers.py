"""Watches for lists of layers in which one layer stands at several places."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.module_names import find_repeats, unwrap
from trainguard.observe.tools.user_line import caller

_MOST = 16


class SharedLayers(Watcher):
    """The Probe events "shared", one for each layer that a list holds more than once."""

    makes = ("Probe:shared",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looked: set[str] = set()
        self._found: list[Probe] = []

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at an outermost module the first time it is called."""
        if forward.module in self._looked or not self.recorder.probe:
            return
        self._looked.add(forward.module)
        self.looked.add("shared")
        source = caller(4)
        for label, places in find_repeats(unwrap(module), forward.module):
            if len(self._found) < _MOST:
                self._found.append(
                    make_probe("shared", places, 1.0, step=forward.step, label=label, source=source)
                )

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found
