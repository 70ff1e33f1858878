"""Watches the clock, and the memory in use."""

import resource
import sys
from time import perf_counter

import torch

from trainguard.observe.watch.watcher import Columns, Watcher
from trainguard.observe.window import Window

_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class Times(Watcher):
    """The columns seconds and memory."""

    def after_step(self, window: Window) -> Columns:
        """Return how long the window took, and on surveyed steps what memory is in use."""
        columns: Columns = {"seconds": perf_counter() - window.started}
        if window.surveyed:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                columns["memory"] = torch.cuda.memory_allocated()
            else:
                columns["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
        return columns
