"""Watches for data sets that are about to be served a second time, which is when they are tried."""

import inspect
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.utils.data import IterableDataset, TensorDataset, dataloader, default_collate

from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.patches import Patches, tell_before

DEEP = 8  # data sets around others
_MOST = 32  # data sets that are looked at


class SecondPasses(Watcher):
    """
    Tells `listeners` of each loader whose data set was trained on once, before the next pass.

    They are called with the loader, and whether workers will read the data. Data that a loader has
    no indices for are passed over, and tensors that are served as they are.
    """

    makes = ()
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.listeners: list[Callable[[Any, bool], None]] = []
        self._thread = threading.get_ident()
        self._passes: dict[int, tuple[weakref.ref[Any], int]] = {}  # by data set

    def install(self, patches: Patches) -> None:
        """Listen to the iterators of all loaders."""
        self._batches = self.recorder.watcher(Batches)
        alone, workers = (
            dataloader._SingleProcessDataLoaderIter,  # noqa: SLF001
            dataloader._MultiProcessingDataLoaderIter,  # noqa: SLF001
        )
        patches.replace(alone, "__init__", tell_before(self._see_start))
        patches.replace(workers, "__init__", tell_before(self._see_workers))

    @shielded
    def _see_start(self, _: Any, loader: Any, *__: Any, **___: Any) -> None:
        """See an iterator that will read the data itself."""
        if self.recorder.patches.live and self._thread == threading.get_ident():
            self._count(loader, workers=False)

    @shielded
    def _see_workers(self, _: Any, loader: Any, *__: Any, **___: Any) -> None:
        """See an iterator whose workers will read the data."""
        if self.recorder.patches.live and self._thread == threading.get_ident():
            self._count(loader, workers=True)

    def _count(self, loader: Any, *, workers: bool) -> None:
        """Count the passes through a data set, and tell of the second one."""
        data = loader.dataset
        idle = (
            isinstance(data, TensorDataset | list | tuple) and loader.collate_fn is default_collate
        )
        if idle or isinstance(data, IterableDataset) or loader.batch_sampler is None:
            return
        if not self.recorder.probe:
            return
        # A list could not be told from another one in its place, but by its loader.
        holder = data if type(data).__weakrefoffset__ else loader
        known, passes = self._passes.get(id(data), (None, 0))
        passes = 0 if known is None or known() is not holder else passes
        self._passes[id(data)] = weakref.ref(holder), passes + 1
        if passes == 1 and id(data) in self._batches.trained_data and len(self._passes) <= _MOST:
            for tell in self.listeners:
                tell(loader, workers)


def read_class(data: Any) -> tuple[str, str, list[str]]:
    """Return the class that serves samples, the line where, and its code, as far as known."""
    for _ in range(DEEP):
        data = getattr(data, "dataset", data)
    name = type(data).__name__
    with suppress(Exception):
        serve = inspect.unwrap(type(data).__getitem__)
        lines, first = inspect.getsourcelines(serve)
        return name, f"{inspect.getsourcefile(serve)}:{first}", lines
    return name, "", []
