"""Remembers which lines cut out what is evaluated, and divide what comes of it."""

import sys
from collections.abc import Iterable
from types import CodeType
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.events.origin import Origin
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.sample_lines import find_cut
from trainguard.observe.tools.user_line import user_frame, user_frames
from trainguard.observe.tools.written_lines import find_division

_PLACES = 8  # that evaluate
_FRAMES = 6  # functions around one


class EvaluationLines(Watcher):
    """
    The Origin events "evaluated samples" and "evaluation divided", where there is one such line.

    As they are written: values do not tell where they were computed.
    """

    makes = ("Origin",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._seen: set[tuple[CodeType, int] | None] = set()
        self._cuts: set[str] = set()
        self._divisions: set[str] = set()

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at the lines around a pass, at the first one from each place."""
        frame = user_frame(sys._getframe(1))  # noqa: SLF001 the one way to look at callers
        place = (frame.f_code, frame.f_lineno) if frame is not None else None
        if frame is None or place in self._seen or len(self._seen) >= _PLACES:
            return
        self._seen.add(place)
        self._cuts |= {line for line in [find_cut(frame)] if line}
        self._divisions |= {line for line in [find_division(user_frames(_FRAMES))] if line}

    def finish(self) -> Iterable[Event]:
        """Return the lines, where it is clear which one it is."""
        if len(self._cuts) == 1:
            yield Origin(name="evaluated samples", source=next(iter(self._cuts)))
        if len(self._divisions) == 1:
            yield Origin(name="evaluation divided", source=next(iter(self._divisions)))
