"""The writers of TensorBoard's event files: a thread of theirs, which no child has, writes."""

import sys
from typing import Any, Final

THREADS: Final = frozenset({"_AsyncWriterThread", "_EventLoggerThread"})  # they wait for events
_MODULES = ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer")
_METHODS = ("add_event", "flush", "close")  # they wait for that thread, which would be for ever


def silence() -> None:
    """Let all writers of this process, a forked child, take what they are given and write none."""
    for name in _MODULES:
        writer = getattr(sys.modules.get(name), "EventFileWriter", None)
        for method in _METHODS if writer is not None else ():
            setattr(writer, method, _ignore)


def _ignore(*_: Any, **__: Any) -> None:
    """Take whatever a writer is given."""
