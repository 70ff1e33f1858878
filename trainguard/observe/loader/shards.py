"""
The probe of how ranks, and the workers of a stream, share the samples of a split.

Serving events, `at` the number of ranks or workers, `detail` which of the two:
"shared": samples that are served more often than they are there, `reference` how many of them
    may be there to fill up the last batches.
"missing": samples that nobody serves, `reference` how many may be dropped at the end.
"uneven": by how many batches the longest rank is longer than the shortest, `reference` the latter.
"alike": ranks of an endless loader that serve what another one serves, `reference` all of them.
"passes": passes that a shuffling sampler made in a row in one and the same epoch, where nothing
    that is iterated can be told the epoch.

Samples are told apart by what is in them; where that is drawn at random, by the sampler's indices.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from trainguard.events.loader import Serving
from trainguard.observe.loader.iterate import (
    record_draws,
    replaces,
    sampler_of,
    serving,
    told_length,
)
from trainguard.observe.loader.layout import laid_out, read
from trainguard.observe.loader.splits import Loaders, is_evaluation, keep_state, parts_of, set_epoch
from trainguard.observe.tools.isolation import seed_everything

_ENDLESS = 200  # batches
_MOST = 20_000


@dataclass
class Shard:
    """
    What one rank, or one process alone, served of a split.

    groups, indices: for each batch, a number for each sample: by what is in it, and its index.
    """

    groups: list[tuple[int, ...]] = field(default_factory=list)
    indices: list[tuple[int, ...]] = field(default_factory=list)
    largest: int = 0
    complete: bool = False
    drops: bool = False
    replaces: bool = False
    dataset: int = -1
    passes: int = 0

    @property
    def prints(self) -> list[int]:
        """A number for each sample, in the order in which they were served."""
        return [made for group in self.groups for made in group]

    @property
    def by_index(self) -> "Shard":
        """The same, with samples that are told by the index that was drawn for them."""
        return replace(self, groups=self.indices[: len(self.groups)])


def shards(loaders: Loaders, case: int) -> Iterator[Serving]:
    """Yield how the samples of each split are shared that may be trained on."""
    made = loaders.make()
    with keep_state(made):
        for split, loader in made.items():
            shuffled = loaders.subject.options.get(split, {}).get("shuffled")
            if not is_evaluation(split) or shuffled:
                events = (*_workers(loaders, split, loader), *_ranks(loaders, split))
                yield from (replace(event, case=case) for event in events)


def _workers(loaders: Loaders, split: str, loader: Any) -> Iterator[Serving]:
    """Compare what the workers of a stream serve with what the process alone would."""
    stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
    if not stream or not isinstance(loader, DataLoader) or loader.num_workers < 2:
        return
    size, collate = loader.batch_size, loader.collate_fn
    alone: Any = DataLoader(loader.dataset, batch_size=size, collate_fn=collate)
    whole, again = (_serve(loaders, split, alone, epoch) for epoch in (0, 1))
    together = _serve(loaders, split, loader, 0)
    if whole.complete and together.complete and _steady(whole, again, 0):
        dropped = loader.num_workers * (together.largest - 1) if together.drops else 0
        yield from _compare(split, whole, [together], 0, dropped, loader.num_workers, "workers")


def _ranks(loaders: Loaders, split: str) -> Iterator[Serving]:
    """Compare what all ranks serve with what a single one would, for each number of ranks."""
    subject = loaders.subject
    worlds = [world for world in subject.ranks if world > 1]
    if not worlds:
        return
    alone = loaders.make(loaders.seed, 0, 1)[split]
    whole, again = (_serve(loaders, split, alone, epoch) for epoch in (0, 1))
    endless = not whole.complete
    if whole.passes > 1:
        yield Serving(quantity="passes", split=split, at="1 rank", measured=whole.passes,
                      reference=1, detail="ranks")  # fmt: skip
    dropped = subject.options.get(split, {}).get("last") == "dropped"
    for world in worlds:
        parts = [_of_rank(loaders, split, rank, world) for rank in range(world)]
        if endless or not all(part.complete for part in parts):
            # Streams may be told apart by the ranks' own seeds, which the training sets.
            apart = [_of_rank(loaders, split, rank, world, rank) for rank in range(world)]
            yield from _alike(split, apart)
            continue
        drops = dropped or any(part.drops for part in parts)
        yield from _uneven(split, parts)
        sides = _identify(whole, again, parts, drops)
        if sides is not None:
            alone_, parts = sides
            yield from _compare(split, alone_, parts, *_limits_for(alone_, parts, drops),
                                 world, "ranks")  # fmt: skip


def _identify(
    whole: Shard, again: Shard, parts: list[Shard], drops: bool
) -> tuple[Shard, list[Shard]] | None:
    """Return what one rank alone and what all serve, told by contents or index, or None."""
    if whole.replaces:
        return None
    slack = 2 * max(whole.largest, 1) if drops else 0
    if _steady(whole, again, slack):
        return whole, parts
    one_dataset = whole.dataset >= 0 and {part.dataset for part in parts} == {whole.dataset}
    if one_dataset and whole.indices and _steady(whole.by_index, again.by_index, slack):
        return whole.by_index, [part.by_index for part in parts]
    return None


def _steady(one: Shard, other: Shard, slack: int) -> bool:
    """Say whether two passes under two seeds served the same samples, in whatever order."""
    first, second = Counter(one.prints), Counter(other.prints)
    apart = (first - second).total() + (second - first).total()
    return bool(one.prints) and apart <= slack


def _limits_for(whole: Shard, parts: list[Shard], drops: bool) -> tuple[int, int]:
    """Return how many samples may be served twice, and how many by nobody, to end evenly."""
    count, world = len(whole.prints), len(parts)
    largest = max((part.largest for part in parts), default=1)
    even = len({len(part.prints) for part in parts}) == 1
    to_batches = -count % (world * largest)
    surplus = sum(len(part.prints) for part in parts) - count
    filled = (to_batches if surplus == to_batches else -count % world) if even else 0
    dropped = world * largest - 1 if drops else (count % world if even else 0)
    if drops:  # what a single rank drops may be alike to what it serves
        left = whole.dataset - count if whole.dataset >= 0 else largest - 1
        filled += min(max(left, 0), largest - 1)
    more, fewer = _in_batches(whole, parts)
    return max(filled, more), max(dropped, fewer)


def _in_batches(whole: Shard, parts: list[Shard]) -> tuple[int, int]:
    """Return the samples of whole batches that come again, or not, to give each rank as many."""
    batches = Counter(tuple(sorted(group)) for part in parts for group in part.groups)
    alone = Counter(tuple(sorted(group)) for group in whole.groups)
    count, world = len(whole.groups), len(parts)
    if len({len(part.groups) for part in parts}) > 1:
        return 0, 0
    again = [group for group, times in batches.items() for _ in range(times - 1)]
    left = list((alone - batches).elements())
    more = sum(map(len, again)) if len(again) == -count % world else 0
    fewer = sum(map(len, left)) if len(left) == count % world and batches <= alone else 0
    return more, fewer


def _compare(
    split: str, whole: Shard, parts: list[Shard], filled: int, dropped: int, count: int, kind: str
) -> Iterator[Serving]:
    """Yield what is served too often, and what is not served."""
    reference = Counter(whole.prints)
    served = Counter(made for part in parts for made in part.prints)
    known = reference | Counter(set(served) - set(reference))  # what a single rank had dropped
    at = f"{count} {kind}"
    yield Serving(quantity="shared", split=split, at=at, measured=(served - known).total(),
                  reference=filled, detail=kind)  # fmt: skip
    yield Serving(quantity="missing", split=split, at=at, measured=(reference - served).total(),
                  reference=dropped, detail=kind)  # fmt: skip


def _alike(split: str, parts: list[Shard]) -> Iterator[Serving]:
    """Yield how many ranks of an endless loader serve the same as another one."""
    streams = Counter(tuple(part.prints) for part in parts)
    alike = sum(count for stream, count in streams.items() if count > 1 and len(set(stream)) > 1)
    yield Serving(quantity="alike", split=split, at=f"{len(parts)} ranks", measured=alike,
                  reference=len(parts), detail="ranks")  # fmt: skip


def _uneven(split: str, parts: list[Shard]) -> Iterator[Serving]:
    """Yield by how many batches the ranks differ."""
    counts = [len(part.groups) for part in parts]
    yield Serving(quantity="uneven", split=split, at=f"{len(parts)} ranks",
                  measured=max(counts) - min(counts), reference=min(counts),
                  detail="ranks")  # fmt: skip


def _of_rank(loaders: Loaders, split: str, rank: int, world: int, seed: int = 0) -> Shard:
    """Return what one rank serves in the first epoch, everything seeded alike or apart."""
    loader = loaders.make(loaders.seed + seed, rank, world)[split]
    return _serve(loaders, split, loader, 0, seed)


def _serve(loaders: Loaders, split: str, loader: Any, epoch: int, seed: int = 0) -> Shard:
    """Serve one epoch under a seed, and return which samples were in it."""
    subject = loaders.subject
    if subject.set_epoch:
        set_epoch(loader, epoch)
    seed_everything(loaders.seed + epoch + seed)
    most = subject.batches or (_MOST if told_length(loader) >= 0 else _ENDLESS)
    part = Shard(drops=_drops(loader), replaces=replaces(sampler_of(loader)),
                dataset=told_length(getattr(loader, "dataset", None)))  # fmt: skip
    layout = None
    with (
        record_draws(loader) as draws,
        _count_passes() as passes,
        serving(loader, split) as batches,
    ):
        for raw in batches:
            layout = layout or laid_out(subject, split, raw)
            seen = read(raw, layout, len(part.groups))
            part.groups.append(seen.prints)
            part.largest = max(part.largest, seen.size)
            if len(part.groups) >= most:
                break
        else:
            part.complete = True
        if draws is not None:
            part.indices = list(draws.draws)
    if not any(callable(getattr(each, "set_epoch", None)) for each in parts_of(loader)):
        part.passes = max(passes.values(), default=0)
    return part


def _drops(loader: Any) -> bool:
    """Say whether some part of a loader says that it drops what is left over."""
    return any(bool(getattr(part, "drop_last", False)) for part in parts_of(loader))


@contextmanager
def _count_passes() -> Iterator[Counter[tuple[int, int]]]:
    """Count the passes of each shuffling DistributedSampler in each epoch."""
    passes: Counter[tuple[int, int]] = Counter()
    original = DistributedSampler.__iter__

    def counting(self: Any) -> Iterator[Any]:
        """Count one pass, and make it."""
        if self.shuffle:
            passes[id(self), self.epoch] += 1
        return original(self)

    DistributedSampler.__iter__ = counting  # type: ignore[method-assign]
    try:
        yield passes
    finally:
        DistributedSampler.__iter__ = original  # type: ignore[method-assign]
