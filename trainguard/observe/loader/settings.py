"""
The probe of how a loader is set up, on this machine.

Serving events, one for each split and no more than what there is to tell:
"workers": worker processes that run at a time, `reference` the cores that this process may use.
"batch": seconds that the training process itself spends on a batch, `reference` those of them that
    it computes; only without workers. `detail` is the number of cores.
"start": seconds that starting the workers takes beyond what empty ones take, `reference` the
    seconds of the rest of the epoch; only where they are started anew for each epoch.
"prefetched": bytes of the batches that workers hold ready, `reference` the memory there is for it.
"unpinned": bytes of a batch; only where there is an accelerator and the batch is not pinned.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch.utils.data import DataLoader

from trainguard.events.loader import Serving
from trainguard.observe.loader.fields import name_fields
from trainguard.observe.loader.iterate import serving, told_length
from trainguard.observe.loader.splits import Loaders, keep_state
from trainguard.observe.tools.devices import present

_TIMED = 5  # batches
_SLOW = 0.2  # seconds; a start below it is not looked at twice
_SHARED = Path("/dev/shm")  # noqa: S108 where torch's workers put batches


def settings(loaders: Loaders, case: int) -> Iterator[Serving]:
    """Yield what the settings of each DataLoader come to here."""
    ranks = min(max(loaders.subject.ranks, default=1), max(torch.cuda.device_count(), 1))
    made = loaders.make()
    with keep_state(made):
        for split, loader in made.items():
            if isinstance(loader, DataLoader):
                for event in _observe_loader(loader, split, ranks):
                    yield replace(event, case=case)


def _observe_loader(loader: DataLoader[Any], split: str, ranks: int) -> Iterator[Serving]:
    """Yield what the settings of one DataLoader come to."""
    if loader.num_workers:
        running = loader.num_workers * ranks
        yield Serving(quantity="workers", split=split, measured=running, reference=_cores())
    yield from _time_batches(loader, split, ranks)


def _time_batches(loader: DataLoader[Any], split: str, ranks: int) -> Iterator[Serving]:
    """Serve the first batches, and tell what they took and how large they are."""
    began = perf_counter()
    with serving(loader, split) as batches:
        first = next(batches, None)
        start = perf_counter() - began
        began, worked = perf_counter(), process_time()
        count = sum(1 for _ in islice(batches, _TIMED))
        seconds, worked = perf_counter() - began, process_time() - worked
    size = sum(int(getattr(value, "nbytes", 0)) for value in name_fields(first).values())
    if count and not loader.num_workers:
        yield Serving(quantity="batch", split=split, measured=seconds / count,
                      reference=worked / count, detail=f"{_cores()} cores")  # fmt: skip
    if loader.num_workers and not loader.persistent_workers and count:
        length = told_length(loader)
        yield from _time_start(
            loader, split, start, seconds / count * (length if length > 0 else count)
        )
    if loader.num_workers:
        held = loader.num_workers * (loader.prefetch_factor or 2) * ranks
        yield Serving(quantity="prefetched", split=split, measured=held * size,
                      reference=_room())  # fmt: skip
    if len(present()) > 1 and not loader.pin_memory:
        yield Serving(quantity="unpinned", split=split, measured=size)


def _time_start(
    loader: DataLoader[Any], split: str, start: float, epoch: float
) -> Iterator[Serving]:
    """Yield what starting the workers costs in each epoch, where it may be much."""
    if start < _SLOW:
        return
    again = _seconds_to_first(loader, split)
    empty: Any = list(range(loader.num_workers))
    bare = _seconds_to_first(DataLoader(empty, num_workers=loader.num_workers), split)
    extra = min(start, again) - bare
    yield Serving(quantity="start", split=split, measured=extra, reference=epoch)


def _seconds_to_first(loader: Any, split: str) -> float:
    """Return how long a loader takes to serve its first batch."""
    began = perf_counter()
    with serving(loader, split) as batches:
        next(batches, None)
        return perf_counter() - began


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _room() -> float:
    """Return the bytes that are free for batches in shared memory; nan where that is not known."""
    if not hasattr(os, "statvfs") or not _SHARED.is_dir():
        return float("nan")
    room = os.statvfs(_SHARED)
    return float(room.f_bavail * room.f_frsize)
