"""Watches the clock, and the memory in use."""

import resource
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window

_STATUS = Path("/proc/self/status")  # of Linux
_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class TimeAndMemory(Watcher):
    """The columns seconds and memory."""

    makes = ("seconds", "memory")

    def after_step(self, window: Window) -> Columns:
        """Return how long the window took, and on surveyed steps what memory is in use."""
        columns: Columns = {"seconds": perf_counter() - window.started}
        if window.is_surveyed:
            device = next((p.device for p in window.parameters), torch.device("cpu"))
            columns["memory"] = _in_use(device)
        return columns


def _in_use(device: torch.device) -> int:
    """Return the bytes in use on a device, and on no other; 0 where it cannot be asked."""
    if device.type == "cpu":
        return _peak()
    module: Any = getattr(torch, device.type, None)  # torch.cuda, torch.xpu, torch.mps
    if hasattr(module, "memory_allocated"):
        return int(module.memory_allocated(device))
    ask = getattr(module, "current_allocated_memory", None)  # of the one device that MPS has
    return int(ask()) if ask is not None else 0


def _peak() -> int:
    """Return the peak resident size of this process, in bytes."""
    # Not `ru_maxrss` where there is another way: it begins with what the parent process had.
    with suppress(OSError), _STATUS.open("rb") as status:
        for line in status:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
