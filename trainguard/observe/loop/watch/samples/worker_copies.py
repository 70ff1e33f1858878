"""Watches the workers of loaders: whether they draw the same numbers, or serve the same samples."""

import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, dataloader
from torch.utils.data._utils import worker as torch_worker

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loader.reachable_state import generators, streams
from trainguard.observe.loop.counterfactual.forking import Exit, fork, obstacle
from trainguard.observe.loop.watch.models.made_lines import MadeLines
from trainguard.observe.loop.watch.samples.batches import Batches, tensors_of
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.fingerprint import bytes_of
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller, find_method_line

_SECONDS = 2.0  # of processor time for a few samples
_SAMPLES = 3  # that each of two workers is to load
_LEAST = 16  # samples of a data set that is looked at
_COUNTED = 1 << 15  # rows of a stream: of fewer, two shuffled copies have little in common
_MOST, _PASSES = 32, 4  # data sets, and passes through streams, that are looked at

States = dict[str, tuple[int, int]]  # of generators, before and after some samples


@dataclass(slots=True)
class _Stream:
    """One pass through a stream that several workers serve: from which of them each row came."""

    workers: int
    source: str
    batches: int = 0
    rows: dict[int, Counter[int]] = field(default_factory=dict)
    counted: int = 0
    trains: bool = False

    def add(self, tensors: list[torch.Tensor]) -> None:
        """Take down the rows of a batch; workers take turns."""
        worker = self.batches % self.workers
        self.batches += 1
        size = len(tensors[0]) if tensors and tensors[0].dim() else 0
        if not size or any(not t.dim() or len(t) != size for t in tensors):
            return
        for row in range(size if self.counted < _COUNTED else 0):
            self.counted += 1
            number = hash(tuple(bytes(bytes_of(tensor[row]) or b"") for tensor in tensors))
            self.rows.setdefault(number, Counter())[worker] += 1

    def served_by_all(self) -> int:
        """Return how many different rows came from each of the workers once."""
        return sum(set(c.values()) == {1} and len(c) == self.workers for c in self.rows.values())


class WorkerCopies(Watcher):
    """
    The Probe events "copies", of streams, and "generators", of data sets that samples are asked of.

    The first tell how many rows all workers have served, of how many different ones. The second are
    of generators that two workers begin and end with in the same state, though they drew from it:
    that is tried in two closed-off children, before the workers start.
    """

    makes = ("Probe:copies", "Probe:generators")
    relies_on = ("Batches", "MadeLines")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._thread = threading.get_ident()
        self._tried: dict[int, tuple[weakref.ref[Any], list[Probe]]] = {}  # by data set
        self._streams: weakref.WeakKeyDictionary[Any, _Stream] = weakref.WeakKeyDictionary()
        self._passes: list[_Stream] = []

    def install(self, patches: Patches) -> None:
        """Listen to the iterators of loaders with workers."""
        self._batches = self.recorder.watcher(Batches)
        kind = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001
        patches.replace(kind, "__init__", self._starts)
        patches.replace(kind, "_next_data", tell_after(self._see_served))

    def before_step(self, window: Window) -> Columns:
        """Take down that the stream that was served last is trained on."""
        server = self._batches.served_by()
        if server is not None and server in self._streams:
            self._streams[server].trains = True
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found of data that were trained on."""
        for key, (_, probes) in self._tried.items():
            yield from probes if key in self._batches.trained_data else ()
        for one in self._passes:
            if one.trains and one.rows:
                yield Probe(
                    probe="copies",
                    measured=float(one.served_by_all()),
                    reference=float(len(one.rows)),
                    label=f"{one.workers} workers",
                    source=one.source,
                )

    def _starts(self, make: Callable[..., None]) -> Callable[..., None]:
        """Return an `__init__` of iterators that tries what the workers are about to do."""

        @wraps(make)
        def wrapper(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            """Start the workers."""
            if self.recorder.patches.live and self._thread == threading.get_ident():
                self._try(loader)
            make(iterator, loader, *args, **kwargs)
            if self.recorder.patches.live and self._thread == threading.get_ident():
                self._follow(iterator, loader)

        return wrapper

    def _see_served(self, batch: Any, iterator: Any) -> None:
        """Take down the rows of streams."""
        if iterator in self._streams:
            self._take(iterator, batch)

    @shielded
    def _follow(self, iterator: Any, loader: Any) -> None:
        """Take down what comes of a stream that several workers serve."""
        several = isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1
        if several and getattr(loader, "in_order", True) and len(self._passes) < _PASSES:
            self._streams[iterator] = stream = _Stream(
                loader.num_workers, find_method_line(loader.dataset, "__iter__") or caller()
            )
            self._passes.append(stream)
            self.looked.add("copies")

    @shielded
    def _take(self, iterator: Any, batch: Any) -> None:
        """Take down the rows of a batch."""
        self._streams[iterator].add(tensors_of(batch))

    @shielded
    def _try(self, loader: Any) -> None:
        """Have two children load some samples as two workers would, where they hold generators."""
        data, known = loader.dataset, self._tried.get(id(loader.dataset))
        if (known is not None and known[0]() is data) or len(self._tried) >= _MOST:
            return
        if isinstance(data, IterableDataset) or loader.batch_sampler is None:
            return
        if not type(data).__weakrefoffset__:
            return  # a list, say: it could not be told from another one in its place
        self._tried[id(data)] = weakref.ref(data), []
        held = generators(data)
        idle = not held and loader.worker_init_fn is None
        if idle or not self.recorder.probe or _size(data) < _LEAST or obstacle():
            return
        one, other = (_load_as(loader, worker) for worker in (0, 1))
        self.looked |= {"generators"} if one and other else set()
        alike = [name for name in one if name in other and _begin_alike(one[name], other[name])]
        # How much is drawn may depend on the sample; what is set by the index ends as it would.
        late = any(one[name] != other[name] for name in alike)
        moved = _load_as(loader, 0, moves=True) if late else {}
        for name in alike:
            if one[name] == other[name] or moved.get(name, one[name])[1] != one[name][1]:
                probe = Probe(
                    probe="generators",
                    measured=float(loader.num_workers),
                    reference=float(loader.persistent_workers),
                    label=name,
                    source=self.recorder.watcher(MadeLines).find_line(loader) or caller(),
                )
                self._tried[id(data)][1].append(probe)


def _size(data: Any) -> int:
    """Return how many samples a data set has; 0 where nobody knows."""
    try:
        return len(data)
    except Exception:  # noqa: BLE001 a data set may raise anything
        return 0


def _begin_alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Say whether two workers begin with the same state of a generator, and both draw from it."""
    return one[0] == other[0] and one[0] != one[1] and other[0] != other[1]


def _load_as(loader: Any, worker: int, *, moves: bool = False) -> States:
    """
    Return the states of generators before and after a worker has loaded some samples.

    moves: draw from each of them before, to see whether that matters.
    """
    answer = fork(_SECONDS, lambda way_out: _be_worker(loader, worker, way_out, moves=moves))
    states: States = answer.report.get("states", {}) if answer is not None else {}
    return states


def _be_worker(loader: Any, worker: int, way_out: Exit, *, moves: bool) -> None:
    """Load samples of its own as a worker that has just been started, and report."""
    data, seed = loader.dataset, 2**32 + 7919 * worker  # each epoch has another seed
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    info = {"id": worker, "num_workers": max(2, loader.num_workers), "seed": seed, "dataset": data}
    torch_worker._worker_info = torch_worker.WorkerInfo(**info)  # noqa: SLF001 as a worker does
    if loader.worker_init_fn is not None:
        loader.worker_init_fn(worker)
    if moves:
        _draw_from(data)
    before = streams(data)
    for place in range(_SAMPLES):
        data[2 * place + worker]
    after = streams(data)
    states = {name: (state, after.get(name, state)) for name, state in before.items()}
    way_out.report(states=states)


def _draw_from(data: Any) -> None:
    """Draw a number from each generator that is there."""
    for each in (random, np.random, *generators(data).values()):
        if isinstance(each, torch.Generator):
            torch.rand((), generator=each)
        else:
            each.random()
    torch.rand(())
