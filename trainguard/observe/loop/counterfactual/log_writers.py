"""Loggers whose threads write what they are told: a forked child has none of these threads."""

import os
import sys
from typing import Any, Final

# Threads that wait for what is logged, by their class or by the package of their function:
# TensorBoard's, tensorboardX's, and those of wandb, with its own telemetry.
THREADS: Final = frozenset(
    {"_AsyncWriterThread", "_EventLoggerThread", "wandb", "opentelemetry"},
)
# Modules, classes, and their methods that hand something to such a thread, or wait for it.
_METHODS = (
    *(
        (f"{name}.event_file_writer", "EventFileWriter", ("add_event", "flush", "close"))
        for name in ("tensorboard.summary.writer", "tensorboardX")
    ),
    ("wandb.sdk.interface.interface_sock", "InterfaceSock", ("_publish",)),
)


def silence() -> None:
    """Let the loggers of this process, a forked child, take what they are given and write none."""
    for module, name, methods in _METHODS:
        kind = getattr(sys.modules.get(module), name, None)
        for method in methods if kind is not None else ():
            setattr(kind, method, _ignore)
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run._attach_pid = os.getpid()  # noqa: SLF001 or else it connects to its service anew


def _ignore(*_: Any, **__: Any) -> None:
    """Take whatever a logger is given."""
