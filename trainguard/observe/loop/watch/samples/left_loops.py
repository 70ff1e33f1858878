"""Watches for loops over batches that a training leaves in their first round."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.left_loops import find_loop
from trainguard.observe.tools.user_line import user_frames

_FRAMES = 4
_LINES, _LOOKS = 16, 8  # places that go backward, and looks at each
_PASSES = 512  # after which nobody looks where they are


@dataclass(slots=True)
class _Left:
    """A loop that is left: passes backward in it, its batches, and the statement."""

    passes: int
    rounds: int
    certain: bool
    statement: str


class LeftLoops(Watcher):
    """
    The Probe event "left loop": a loop over a loader whose body ends in a return or a break.

    measured: passes backward in it that were looked at; reference: of how many batches the loader
    is; step: 1 for a return, where the functions that run speak of epochs; label: the statement.
    """

    makes = ("Probe:left loop",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = 0
        self._seen: dict[tuple[CodeType, int], int] = {}
        self._found: dict[str, _Left] = {}

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at the loops in which the functions that run are."""
        self._passes += 1
        if self._passes > _PASSES:
            self.recorder.dismiss(self)
            return
        frames = list(user_frames(_FRAMES))
        for frame in frames:
            key = frame.f_code, frame.f_lineno
            seen = self._seen.get(key, 0)
            if seen >= _LOOKS or (not seen and len(self._seen) >= _LINES):
                continue
            self._seen[key] = seen + 1
            rounds, leaves = find_loop(frame)
            self.looked |= {"left loop"} if rounds else set()
            if leaves is not None:
                source = f"{frame.f_code.co_filename}:{leaves.lineno}"
                statement = ast.unparse(leaves)
                passes = self._found[source].passes if source in self._found else 0
                certain = statement.startswith("return") and any(map(_speaks_of_epochs, frames))
                self._found[source] = _Left(passes + 1, rounds, certain, statement)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, left in self._found.items():
            label = left.statement.partition("\n")[0]
            rest = {"step": int(left.certain), "label": label, "source": source}
            yield make_probe("left loop", left.passes, left.rounds, **rest)


def _speaks_of_epochs(frame: FrameType) -> bool:
    """Say whether a function has epochs: one that takes a batch at a time has none to end."""
    code = frame.f_code
    return any(
        "epoch" in name.lower() for name in (code.co_name, *code.co_names, *code.co_varnames)
    )
