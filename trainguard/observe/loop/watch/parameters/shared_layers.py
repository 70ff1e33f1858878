"""Watches for lists of layers in which one layer stands at several places."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.module_names import find_repeats, unwrap
from trainguard.observe.tools.user_line import caller, user_frames
from trainguard.observe.tools.written_calls import repeats_one_layer

_MOST = 16
_FRAMES = 8


class SharedLayers(Watcher):
    """
    The Probe events "shared", one for each layer that a list holds more than once.

    reference: 1 where the code makes it inside of a list that it multiplies, else 0.
    """

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
        root, files = unwrap(module), {frame.f_code.co_filename for frame in user_frames(_FRAMES)}
        for label, places, layer in find_repeats(root, forward.module):
            if len(self._found) < _MOST:
                repeats = repeats_one_layer(root, layer, files)
                rest = {"label": label, "source": source}
                self._found.append(make_probe("shared", places, repeats, step=forward.step, **rest))

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found
