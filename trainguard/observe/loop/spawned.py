"""Processes that a script starts by torch.multiprocessing.spawn, each recorded by itself."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any

from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.patches import Patches


@dataclass(frozen=True)
class RecordedFunction:
    """A function that records what it is, in the process that it is sent to."""

    function: Callable[..., Any]
    name: str
    folder: str
    options: Mapping[str, Any]

    def __call__(self, rank: int, *args: Any) -> Any:
        """Be one of the processes, and leave a trace."""
        recorder, result = Recorder(self.name, **self.options), None
        try:
            with recorder:
                result = self.function(rank, *args)
        finally:
            with suppress(OSError):
                # Under another name first: what is read has been written to its end.
                part = Path(self.folder, f"{rank}.part")
                part.write_text(recorder.trace.to_text(), encoding="utf-8")
                part.rename(Path(self.folder, str(rank)))
        return result


@dataclass
class SpawnedProcesses:
    """
    What the processes of the first call of torch.multiprocessing.spawn record, by their ranks.

    Those that are forked are left alone: they inherit a recording that rests in them.
    """

    name: str
    options: Mapping[str, Any]
    count: int = 0
    traces: dict[int, Trace[Event]] = field(default_factory=dict)
    _folder: str = ""

    def listen(self, patches: Patches) -> None:
        """Listen to what starts the processes, until the recording of this one is over."""
        import torch.multiprocessing.spawn  # noqa: F401 the package has a function so called

        spawning = sys.modules["torch.multiprocessing.spawn"]
        self._patches = patches
        patches.redirect(spawning.start_processes, self._starts)

    def __enter__(self) -> "SpawnedProcesses":
        """Wait for processes to be started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Read the traces."""
        for rank in range(self.count):
            with suppress(OSError, ValueError):
                text = Path(self._folder, str(rank)).read_text(encoding="utf-8")
                self.traces[rank] = Trace.from_text(text)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _starts(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `start_processes` whose processes record."""

        @wraps(start)
        def wrapper(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
            """Start the processes."""
            method = more[2] if len(more) > 2 else named.get("start_method", "spawn")
            launched = os.environ.get("WORLD_SIZE", "1") != "1"  # this is one of several itself
            if self._patches.active and not (self.count or launched or method == "fork"):
                with suppress(OSError):  # no place for traces: as without us
                    self._folder, self.count = mkdtemp(prefix="trainguard-"), nprocs
                    fn = RecordedFunction(fn, self.name, self._folder, self.options)
            return start(fn, args, nprocs, *more, **named)

        return wrapper
