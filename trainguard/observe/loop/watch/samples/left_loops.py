"""Watches for loops over batches that a training leaves in their first round."""

from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.left_loops import find_left_loop
from trainguard.observe.tools.user_line import user_frames

_FRAMES = 4
_LINES, _LOOKS = 16, 8  # places that go backward, and looks at each
_PASSES = 512  # after which nobody looks where they are


class LeftLoops(Watcher):
    """
    The Probe event "left loop": a loop over a loader whose body ends in a return or a break.

    measured: passes backward in it that were looked at; reference: of how many batches the loader
    is; step: 1 for a return; label: the statement.
    """

    makes = ("Probe:left loop",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = 0
        self._seen: dict[tuple[CodeType, int], int] = {}
        self._found: dict[str, tuple[int, int, str]] = {}

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the loops in which the functions that run are."""
        self._passes += 1
        if self._passes > _PASSES:
            self.recorder.dismiss(self)
            return
        for frame in user_frames(_FRAMES):
            key = frame.f_code, frame.f_lineno
            seen = self._seen.get(key, 0)
            if seen >= _LOOKS or (not seen and len(self._seen) >= _LINES):
                continue
            self._seen[key] = seen + 1
            self.looked.add("left loop")
            line, statement, rounds = find_left_loop(frame)
            if line:
                source = f"{frame.f_code.co_filename}:{line}"
                passes = self._found.get(source, (0, 0, ""))[0]
                self._found[source] = passes + 1, rounds, statement

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, (passes, rounds, statement) in self._found.items():
            label = statement.partition("\n")[0]
            rest = {"step": int(label.startswith("return")), "label": label, "source": source}
            yield make_probe("left loop", passes, rounds, **rest)
