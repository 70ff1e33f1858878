"""The probe `scan`: look through the batches of each split for two epochs or more."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import factorial
from time import perf_counter
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from trainguard.core.errors import SubjectError
from trainguard.events.base import Event
from trainguard.events.loader import Batch, Epoch
from trainguard.observe.loader.chunks import ChunkSeams
from trainguard.observe.loader.ends import Ends
from trainguard.observe.loader.fingerprints import reading
from trainguard.observe.loader.iterate import (
    base_indices,
    base_of,
    hold_alarm,
    record_draws,
    replaces,
    sampler_of,
    serving,
    shut,
    told_length,
)
from trainguard.observe.loader.layout import Layout, ReadBatch, laid_out, read
from trainguard.observe.loader.padding import PaddingWatcher
from trainguard.observe.loader.splits import Loaders, is_evaluation, is_train, keep_state, set_epoch
from trainguard.observe.loader.values import Values
from trainguard.subjects.loader import Loader

ENDLESS = 500  # batches of a loader that tells no length
_LONG = 20_000  # batches of a loader that tells one
_SHARE = 0.5  # of the timeout, for all that is scanned
_EPOCHS = 2
_CHANCE = 1e6  # a fixed order is told from a random one that came again by chance, at such odds
LEAST = 64  # batches
_PARTS = 10  # of more batches, one in so many


class BatchWatcher(Protocol):
    """What looks at the batches of one split while they pass, and tells of them at the end."""

    def see(self, batch: ReadBatch, epoch: int, index: int) -> None:
        """Look at one batch."""

    def events(self) -> Iterator[Event]:
        """Tell what was seen."""


@dataclass
class Scan:
    """The scan of one split: its layout, found on the first batch, and what watches it."""

    loaders: Loaders
    split: str
    case: int
    bases: dict[int, Any]
    ends: dict[str, Ends]  # what was learned of the fields when the split was looked through before
    layout: Layout | None = None
    watchers: list[BatchWatcher] = field(default_factory=list)
    first: list[Batch] = field(default_factory=list)  # the first epoch
    part: int = 0  # of later epochs that may be enough; 0 where it is not

    def read(self, raw: Any, index: int) -> ReadBatch:
        """Read a batch; the first one says what is what."""
        if self.layout is None:
            self.layout = laid_out(self.loaders.subject, self.split, raw)
            self.layout.ends = self.ends
            self.watchers = [Values(self.layout, self.case)]
            if self.layout.has_sequence:
                self.watchers.append(PaddingWatcher(self.layout, self.case))
            if self.loaders.subject.chunks == "stream":
                self.watchers.append(ChunkSeams(self.layout, self.case))
        return read(raw, self.layout, index)

    def is_enough(self, later: list[Batch]) -> bool:
        """Say whether a later epoch need not be looked at any further."""
        options = options_of(self.loaders.subject, self.split)
        return len(later) == self.part > 0 and is_settled(self.split, options, self.first, later)


def scan(loaders: Loaders, case: int) -> Iterator[Event]:
    """
    Yield a Batch for each batch of each split, an Epoch for each pass, and what was added up.

    Where the order was the same twice and the batches are few, more epochs are looked at: a few
    batches come in the same order by chance. Of a second epoch of many batches, a part is looked
    at, as long as nothing in it is other than it should be.

    Long samples are told apart by a part of each. Where two of them seem to be the same, all is
    looked through once more, and each sample read as a whole. So is all where it was seen only on
    the way where the samples of a field end.
    """
    ends: dict[str, dict[str, Ends]] = {}
    with reading(exact=False) as how:
        events = tuple(_looked_through(loaders, case, ends))
    exact = how.partial and _some_alike(events)
    if exact or any(end.changed for fields in ends.values() for end in fields.values()):
        with reading(exact):
            events = tuple(_looked_through(loaders, case, ends))
    yield from events


def _some_alike(events: Iterable[Event]) -> bool:
    """Say whether two samples of the first epochs, in one split or in two, seem to be the same."""
    first: dict[int, tuple[str, int | None]] = {}
    for batch in events:
        if not isinstance(batch, Batch) or batch.epoch:
            continue
        places = batch.indices or (None,) * batch.size
        for print_, place in zip(batch.prints, places, strict=False):
            here = (batch.split, place)
            if print_ in first and (place is None or first[print_] != here):
                return True
            first.setdefault(print_, here)
    return False


def _looked_through(
    loaders: Loaders, case: int, ends: dict[str, dict[str, Ends]]
) -> Iterator[Event]:
    """Look through all splits once."""
    made = loaders.make()
    seconds = _SHARE * loaders.subject.timeout / (_EPOCHS * len(made))
    bases: dict[int, Any] = {}  # kept alive, so that no two have the same id
    with keep_state(made):
        for split, loader in made.items():
            try:
                known = ends.setdefault(split, {})
                yield from _scan_split(Scan(loaders, split, case, bases, known), loader, seconds)
            finally:
                with hold_alarm():
                    shut(None, loader)


def _scan_split(scan: Scan, loader: Any, seconds: float) -> Iterator[Event]:
    """Look through one split."""
    passes: list[list[Batch]] = []
    while len(passes) < _EPOCHS or _is_undecided(scan, passes):
        if passes and hasattr(loader, "__next__"):
            loader = _again(scan)
        batches, epoch = _epoch(scan, loader, len(passes), seconds)
        if not passes and scan.loaders.subject.chunks is None:
            once = bool(options_of(scan.loaders.subject, scan.split).get("once"))
            scan.first, scan.part = batches, part_of(epoch, once)
        passes.append(batches)
        yield from batches
        yield epoch
        if not epoch.complete and epoch.said < 0:
            break  # a stream without an end has no second epoch
    for watcher in scan.watchers:
        yield from watcher.events()


def _is_undecided(scan: Scan, passes: list[list[Batch]]) -> bool:
    """Say whether equal orders so far may be chance, and another epoch would tell."""
    shuffled = options_of(scan.loaders.subject, scan.split).get("shuffled")
    count = len(passes[0])
    if shuffled is False or not (shuffled or is_train(scan.split)) or not 2 <= count < 10:
        return False
    orders = [[batch.prints for batch in batches] for batches in passes]
    same = all(order == orders[0] for order in orders)
    return same and factorial(count) ** (len(passes) - 1) < _CHANCE


def _again(scan: Scan) -> Any:
    """Make anew, without seeding, a loader that can be used once."""
    if not scan.loaders.fresh:
        raise SubjectError(
            f"the loader of {scan.split!r} is an iterator, which can be used for one epoch only",
            "pass the function that makes it",
        )
    return scan.loaders.make(reseed=False)[scan.split]


def _epoch(scan: Scan, loader: Any, epoch: int, seconds: float) -> tuple[list[Batch], Epoch]:
    """Look through one epoch, until its end, or until enough was seen."""
    subject, started = scan.loaders.subject, perf_counter()
    if subject.set_epoch:
        set_epoch(loader, epoch)
    said = told_length(loader)
    most = subject.batches or (_LONG if said >= 0 else ENDLESS)
    batches: list[Batch] = []
    complete = False
    with ExitStack() as stack:
        draws = stack.enter_context(record_draws(loader))
        serving_ = stack.enter_context(serving(loader, scan.split, lasting=True))
        while len(batches) < most and perf_counter() - started < seconds:
            before = perf_counter()
            try:
                raw = next(serving_)
            except StopIteration:
                complete = True
                break
            waited = perf_counter() - before
            known = draws.draws[len(batches)] if draws and len(batches) < len(draws.draws) else ()
            indices = base_indices(loader.dataset, known) if known else ()
            batches.append(_batch(scan, raw, epoch, len(batches), waited, indices))
            if epoch and scan.is_enough(batches):
                break
    if not batches:
        raise SubjectError(*_nothing(scan.split, loader, epoch))
    return batches, _make_epoch(
        scan, loader, epoch, batches, complete, said, perf_counter() - started
    )


def _batch(
    scan: Scan, raw: Any, epoch: int, index: int, seconds: float, indices: tuple[int, ...]
) -> Batch:
    """Make the event of one batch, and show it to the watchers."""
    seen = scan.read(raw, index)
    for watcher in scan.watchers:
        watcher.see(seen, epoch, index)
    return Batch(
        case=scan.case,
        split=scan.split,
        epoch=epoch,
        index=index,
        size=seen.size,
        prints=seen.prints,
        labels=seen.labels,
        indices=indices,
        shapes=seen.shapes,
        length=seen.length,
        seconds=seconds,
    )


def _make_epoch(
    scan: Scan,
    loader: Any,
    epoch: int,
    batches: list[Batch],
    complete: bool,
    said: int,
    seconds: float,
) -> Epoch:
    """Make the event of one epoch, with what the loader says of itself."""
    torchs = isinstance(loader, DataLoader)
    stream = torchs and isinstance(loader.dataset, IterableDataset)
    sampler, base = sampler_of(loader), base_of(loader)
    if base is not None:
        scan.bases.setdefault(id(base), base)
    return Epoch(
        case=scan.case,
        split=scan.split,
        epoch=epoch,
        batches=len(batches),
        samples=sum(batch.size for batch in batches),
        complete=complete,
        said=said,
        dataset=told_length(loader.dataset) if torchs else -1,
        due=-1 if sampler is getattr(loader, "batch_sampler", None) else told_length(sampler),
        base=list(scan.bases).index(id(base)) if base is not None else -1,
        kind=("stream" if stream else "map") if torchs else "",
        sampler=type(sampler).__name__ if sampler is not None else "",
        replaces=replaces(sampler),
        drops=bool(getattr(loader, "drop_last", False))
        or bool(getattr(getattr(loader, "batch_sampler", None), "drop_last", False)),
        workers=int(getattr(loader, "num_workers", 0) or 0),
        seconds=seconds,
    )


def _nothing(split: str, loader: Any, epoch: int) -> tuple[str, str]:
    """Say that an epoch was empty, and why as far as that can be known."""
    if epoch:
        return (
            f"the loader of {split!r} serves nothing in its second epoch",
            "make it begin anew each time it is iterated",
        )
    dataset = told_length(getattr(loader, "dataset", None))
    if dataset == 0:
        return f"the dataset of {split!r} is empty", "look at the paths and filters it is made of"
    if dataset > 0:
        return (
            f"the loader of {split!r} serves no batch of its {dataset} samples",
            "drop_last=True drops the only batch where there are fewer samples than it holds",
        )
    return f"the loader of {split!r} serves no batch", "look at the paths and filters it is made of"


def options_of(subject: Loader, split: str) -> dict[str, Any]:
    """Return what is promised of a split; what is declared of `val` holds for `val.0` too."""
    base = split.partition(".")[0]
    return dict(subject.options.get(split) or subject.options.get(base) or {})


def part_of(epoch: Epoch, once: bool) -> int:
    """
    Return after how many batches a later epoch may be broken off; 0 where it must not.

    A stream goes on where it was left, and so may begin its next epoch in the middle. Where each
    sample must come once, whole epochs are compared.
    """
    count = max(LEAST, epoch.batches // _PARTS)
    whole = once or epoch.kind != "map" or not epoch.complete
    return 0 if whole or count >= epoch.batches else count


def is_settled(
    split: str, options: dict[str, Any], first: Sequence[Batch], later: Sequence[Batch]
) -> bool:
    """
    Say whether the beginning of a later epoch is as it should be, so that no more need be seen.

    Whatever could make a finding is looked at to its end: an order that is the same again where it
    should be another, or another where it should be the same, and labels that change.
    """
    pairs = list(zip(first, later, strict=False))
    if is_evaluation(split) and options.get("shuffled") is not True:
        return all(_key_of(one) == _key_of(other) for one, other in pairs)
    moved = any((a.indices or a.prints) != (b.indices or b.prints) for a, b in pairs)
    return (moved or options.get("shuffled") is False) and _labels_agree(first, later)


def _key_of(batch: Batch) -> tuple[tuple[int, ...], ...]:
    """Return all that tells the samples of a batch from others."""
    return batch.indices, batch.prints, batch.labels


def _labels_agree(first: Iterable[Batch], later: Iterable[Batch]) -> bool:
    """Say whether samples that came before have the labels that they had then."""
    known = {pair[0]: pair[1] for batch in first for pair in _pair_labels(batch)}
    return all(known.get(p, label) == label for batch in later for p, label in _pair_labels(batch))


def _pair_labels(batch: Batch) -> Iterable[tuple[int, int]]:
    """Return the samples of a batch with their labels, where these are known."""
    return zip(batch.prints, batch.labels, strict=False)
