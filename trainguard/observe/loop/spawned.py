"""Processes that a script starts by torch.multiprocessing or multiprocessing, each recorded."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any

from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.user_line import foreign


@dataclass(frozen=True)
class RecordedFunction:
    """
    A function that records what it is, in the process that it is sent to.

    number: of the process; where it is None, the first argument is.
    """

    function: Callable[..., Any]
    name: str
    folder: str
    options: Mapping[str, Any]
    number: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Be one of the processes, and leave a trace."""
        recorder, result = Recorder(self.name, **self.options), None
        rank = args[0] if self.number is None else self.number
        try:
            with recorder:
                result = self.function(*args, **kwargs)
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
    What processes record that the script has started, by their ranks.

    Those of the first call of torch.multiprocessing.spawn, or of start_processes, as Accelerate's
    notebook_launcher makes it; or those of multiprocessing.Process that are started before the
    script itself has made a step, with a function of the user's own whose module knows torch.
    """

    name: str
    options: Mapping[str, Any]
    count: int = 0
    traces: dict[int, Trace[Event]] = field(default_factory=dict)
    _folder: str = ""
    _called: bool = False

    def listen(self, recorder: Recorder) -> None:
        """Listen to what starts the processes, until the recording of this one is over."""
        import torch.multiprocessing.spawn  # noqa: F401 the package has a function so called

        spawning = sys.modules["torch.multiprocessing.spawn"]
        self._recorder = recorder
        # Later on a launcher within the script may have said so of what it is about to start.
        self._alone = os.environ.get("WORLD_SIZE", "1") == "1"
        recorder.patches.redirect(spawning.start_processes, self._starts)
        recorder.patches.replace(BaseProcess, "start", self._begins)

    def __enter__(self) -> "SpawnedProcesses":
        """Wait for processes to be started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Read the traces; of processes that a script has for something else there is nothing."""
        for rank in range(self.count):
            with suppress(OSError, ValueError):
                text = Path(self._folder, str(rank)).read_text(encoding="utf-8")
                self.traces[rank] = Trace.from_text(text)
        if not self._called:
            trained = [rank for rank, trace in self.traces.items() if trace.conditions["steps"]]
            self.traces = {i: self.traces[rank] for i, rank in enumerate(trained)}
            self.count = len(trained)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def lead(self, trace: Trace[Event]) -> None:
        """Put the process that has started the others before them, as one that trains with them."""
        self.traces = {0: trace} | {rank + 1: own for rank, own in self.traces.items()}
        self.count += 1

    def _starts(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `start_processes` whose processes record."""

        @wraps(start)
        def wrapper(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
            """Start the processes."""
            if self._may_record() and not self.count:
                with suppress(OSError):  # no place for traces: as without us
                    self._folder, self.count, self._called = _make_folder(), nprocs, True
                    fn = RecordedFunction(fn, self.name, self._folder, self.options)
            return start(fn, args, nprocs, *more, **named)

        return wrapper

    def _begins(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `start` of a process that records."""

        @wraps(start)
        def wrapper(process: Any) -> Any:
            """Start the process."""
            target: Any = getattr(process, "_target", None)
            if self._may_record() and not self._called and _may_train(target):
                with suppress(OSError):
                    self._folder = self._folder or _make_folder()
                    options = self._folder, self.options, self.count
                    process._target = RecordedFunction(target, self.name, *options)  # noqa: SLF001
                    self.count += 1
            return start(process)

        return wrapper

    def _may_record(self) -> bool:
        """Say whether what is started now may train: this process is alone, and does not."""
        return self._recorder.patches.active and self._alone and not self._recorder.steps


def _make_folder() -> str:
    """Make a folder for traces."""
    return mkdtemp(prefix="trainguard-")


def _may_train(target: Any) -> bool:
    """Say whether a function is the user's own, in a module that knows torch."""
    code = getattr(target, "__code__", None)
    if code is None or not foreign(code.co_filename):
        return False
    known = getattr(target, "__globals__", {}).values()
    return any(getattr(value, "__name__", "").startswith("torch") for value in [*known])
