"""Watches the indices that loaders ask their data sets for: their order, and how many there are."""

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler, dataloader
from torch.utils.data.distributed import DistributedSampler

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.ranks import ServedSamples
from trainguard.observe.loop.watch.models.made_lines import MadeLines
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.groups import is_one_of_several
from trainguard.observe.tools.index_buckets import find_buckets, find_short_ones
from trainguard.observe.tools.indexed_samples import find_followed
from trainguard.observe.tools.patches import Patches, tell_after, tell_before
from trainguard.observe.tools.user_line import caller

_HEAD = 8  # batches of a pass through a loader by which its order is known
_COUNTED = 65536  # indices of a pass that are counted
_SURE = 8  # indices that come in the same order by chance in one of 40,000 passes
_LEAST = 16  # samples of a data set that is worth shuffling
_PASSES = 512  # passes that are remembered
_FOLLOWED = 64  # samples of a data set, in processes of several
_PASSES_BEFORE = {3, 8, 24}  # after which it is seen what none of them has drawn
_TOLD = 8  # passes of which it is told what they served of those
_SHUFFLES = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_SWITCHES = ("shuffle", "_shuffle", "shuffled", "randomize")


@dataclass(slots=True)
class _LoaderPass:
    """
    One pass through a loader.

    data, size: the id of its data set, and how many samples that has. sampler: its class.
    shuffles: whether that is one that draws an order. told: whether it has a set_epoch.
    trains: the window of the step that was made from its batches.
    share, epoch: what a sampler for several processes says of itself.
    made: the line of its loader.
    followed: how often some of the samples came; empty in a process that is alone.
    """

    data: int
    size: int
    sampler: str
    shuffles: bool
    source: str
    told: bool = False
    batches: int = 0
    head: list[int] = field(default_factory=list)
    drawn: int = 0
    different: set[int] = field(default_factory=set)
    trains: int = 0
    share: str = ""
    epoch: int = -1
    made: str = ""
    followed: dict[int, int] = field(default_factory=dict)

    def add(self, indices: list[int]) -> None:
        """Take down the indices of a batch."""
        for index in indices if self.followed else ():
            if index in self.followed:
                self.followed[index] += 1
        self.batches += 1
        if self.batches <= _HEAD:
            self.head += indices
        if self.drawn < _COUNTED:
            self.drawn += len(indices)
            self.different.update(indices)


class EpochOrders(Watcher):
    """
    The Probe events "order" and "reach", of loaders whose batches are trained on.

    "undrawn": samples in lists of a sampler that are shorter than a batch, and never drawn from.
    And the ServedSamples events, of a process that is one of several.
    """

    makes = ("Probe:order", "Probe:reach", "Probe:undrawn", "ServedSamples")
    relies_on = ("Batches", "MadeLines")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._thread = threading.get_ident()
        self._running: weakref.WeakKeyDictionary[Any, _LoaderPass] = weakref.WeakKeyDictionary()
        self._passes: list[_LoaderPass] = []
        self._served = 0  # batches, at the last step
        self._undrawn: dict[int, Probe] = {}  # by data set

    def install(self, patches: Patches) -> None:
        """Listen to the iterators of all loaders."""
        self._batches = self.recorder.watcher(Batches)
        kind = dataloader._BaseDataLoaderIter  # noqa: SLF001
        patches.replace(kind, "_next_index", tell_after(self._see_indices))
        patches.replace(kind, "_reset", tell_before(self._see_reset))

    def before_step(self, window: Window) -> Columns:
        """Take down that the batch that was served last is trained on."""
        served = self._batches.recent[-1] if self._batches.recent else None
        if served is not None and served.number > self._served:
            self._served = served.number
            server = self._batches.served_by()  # None, where its iterator is gone by now
            running = self._running.get(server) if server is not None else None
            if running is not None:
                running.trains = id(window)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return how many passes repeat the order of an earlier one, and what a pass reaches."""
        self._running.clear()
        yield from self._undrawn.values()
        own: defaultdict[tuple[int, int], list[_LoaderPass]] = defaultdict(list)
        for one in self._passes:
            if one.trains and one.size >= _LEAST:
                own[one.trains, one.data].append(one)
        for passes in own.values():
            shuffled = [p for p in passes if p.shuffles and len(p.head) >= _SURE]
            shuffled = [p for p in shuffled if p.head != sorted(p.head)]  # as if switched off
            self.looked |= {"order"} if len(shuffled) > 1 else set()
            yield from _compare_orders(shuffled)
            widest = max(passes, key=lambda one: len(one.different))
            yield Probe(
                probe="reach",
                measured=float(len(widest.different)),
                reference=float(widest.drawn),
                step=widest.size,
                label=widest.sampler,
                source=widest.made or widest.source,
            )
        for place, passes in enumerate(own.values()):
            if passes[0].followed:
                yield _tell_served(place, passes[:_TOLD])

    @shielded
    def _see_indices(self, indices: Any, iterator: Any) -> None:
        """Take down what a `_next_index` returns."""
        if self.recorder.patches.active and self._thread == threading.get_ident():
            with suppress(Exception):  # whatever somebody's sampler yields
                self._take(iterator, indices)

    def _see_reset(self, iterator: Any, *_: Any, **__: Any) -> None:
        """Begin another pass of the workers that stay."""
        self._forget(iterator)

    @shielded
    def _forget(self, iterator: Any) -> None:
        """Forget which pass an iterator is in."""
        self._running.pop(iterator, None)

    def _take(self, iterator: Any, indices: Any) -> None:
        """Take down the indices of a batch, where they are numbers of samples."""
        running = self._running.get(iterator)
        if running is None:
            if len(self._passes) >= _PASSES:
                return
            outer = iterator._index_sampler  # noqa: SLF001
            sampler = getattr(outer, "sampler", outer)
            data = iterator._dataset  # noqa: SLF001
            # What makes the batches may draw the order too, around a sampler that it ignores.
            drawing = outer if _is_told(outer) and _shuffles(outer) else sampler
            kind, shuffles = type(drawing).__name__, _shuffles(drawing)
            running = _LoaderPass(id(data), len(data), kind, shuffles, caller(), _is_told(drawing))
            running.made = self.recorder.watcher(MadeLines).find_line(sampler)
            running.share, running.epoch = _share_of(sampler)
            if is_one_of_several():
                running.followed = dict.fromkeys(find_followed(running.size, _FOLLOWED), 0)
            self._running[iterator] = running
            self._passes.append(running)
            self._look_for_buckets(sampler, running)
        if isinstance(indices, list) and all(isinstance(index, int) for index in indices):
            running.add(indices)

    def _look_for_buckets(self, sampler: Any, begins: _LoaderPass) -> None:
        """See whether a sampler of the user's keeps lists that no pass has drawn from so far."""
        own = [one for one in self._passes if one.data == begins.data]
        passes = [one for one in own if one.trains and one.batches]
        if len(passes) not in _PASSES_BEFORE or any(one.drawn >= _COUNTED for one in passes):
            return
        drawn = set[int]().union(*(one.different for one in passes))
        batch = max(-(-one.drawn // one.batches) for one in passes)
        buckets = find_buckets(sampler)
        idle = list(find_short_ones(buckets, drawn, batch))
        self.looked |= {"undrawn"} if buckets else set()
        self._undrawn.pop(begins.data, None)
        if idle:
            self._undrawn[begins.data] = Probe(
                probe="undrawn",
                measured=float(sum(map(len, idle))),
                reference=float(sum(map(len, buckets))),
                step=len(passes),
                label=f"{begins.sampler}\n{len(idle)} of {len(buckets)}\n{batch}",
                source=begins.source,
            )


def _shuffles(sampler: Any) -> bool:
    """Say whether a sampler is one that draws another order for each epoch, or is to be told it."""
    if any(getattr(sampler, name, None) is False for name in _SWITCHES):
        return False
    return isinstance(sampler, _SHUFFLES) or _is_told(sampler)


def _is_told(sampler: Any) -> bool:
    """Say whether a sampler is to be told each epoch that begins."""
    return callable(getattr(sampler, "set_epoch", None))


def _share_of(sampler: Any) -> tuple[str, int]:
    """Return which part of the data a sampler for several processes serves, and in which epoch."""
    if type(sampler) is not DistributedSampler:
        return "", -1
    return f"{sampler.rank} of {sampler.num_replicas}", sampler.epoch


def _tell_served(place: int, passes: list[_LoaderPass]) -> Event:
    """Return what the passes through a data set have served of the samples that are followed."""
    first = passes[0]
    return ServedSamples(
        data=place,
        size=first.size,
        sampler=first.sampler,
        share=first.share,
        shuffles=first.shuffles,
        epochs=tuple(one.epoch for one in passes),
        drawn=tuple(one.drawn for one in passes),
        counts=tuple("".join(str(min(n, 9)) for n in p.followed.values()) for p in passes),
        source=first.source,
    )


def _compare_orders(passes: list[_LoaderPass]) -> Iterable[Event]:
    """Yield how many passes begin as an earlier one did, where their order matters."""
    orders: set[tuple[int, ...]] = set()
    repeated: list[_LoaderPass] = []
    several = [one for one in passes if one.batches > 1 or len(one.head) < one.size]
    for one in several:
        head = tuple(one.head)
        if head in orders:
            repeated.append(one)
        orders.add(head)
    if repeated:
        yield Probe(
            probe="order",
            measured=float(len(repeated)),
            reference=float(len(several)),
            label=repeated[0].sampler + "\nset_epoch" * repeated[0].told,
            source=repeated[0].source,
        )
