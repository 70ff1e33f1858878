"""Judgements of the order in which samples come, epoch by epoch."""

from collections.abc import Iterator
from math import factorial

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.loader.wording import Split, each_split
from trainguard.invariants.loop.wording import percent

_LEAST = 10  # samples from which on an order is one
_CHANCE = 1e6


@invariant("loader")
def epochs_are_reshuffled(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Training samples come in a different order in each epoch.

    Judges: the order of two epochs or more, by the sampler's indices, or else by the samples; where
        shuffled=True is declared or a random sampler draws. A split called train of which nothing
        is said gives a note.
    Allows: shuffled=False; chunks="stream"; fewer than 10 samples, or so few batches that the same
        order comes by chance; streams without an end.
    Misses: orders that differ little; a shuffle within a small buffer.
    Why: a generator seeded anew, or set_epoch forgotten, and every epoch is the same sequence of
        batches: averages over the samples then follow the order.
    Source: PyTorch's documentation of DistributedSampler, which asks for set_epoch().
    """
    for split in each_split(trace):
        if split.option("shuffled") is False or trace.promises.get("chunks") == "stream":
            continue
        rank = _rank_intent(split)
        if rank is not None and _always_alike(split):
            epoch = split.first.epoch
            yield Finding(
                f"every epoch of `{trace.subject}` comes in the same order",
                f"split {split.name!r}, {len(split.passes)} epochs",
                integer(len(split.first.order), "samples") + " in one order",
                "another order in each epoch",
                why=_why(split),
                rank=rank,
                event=epoch,
            )


def _rank_intent(split: Split) -> Rank | None:
    """Return how sure it is that a split should be shuffled; None where it need not be."""
    random = split.first.epoch.sampler in ("RandomSampler", "SubsetRandomSampler")
    spread = split.first.epoch.sampler == "DistributedSampler" and not _is_ascending(split)
    if split.option("shuffled") or random or spread:
        return Rank.BROKEN
    return Rank.NOTE if split.trains else None


def _always_alike(split: Split) -> bool:
    """Say whether all epochs came in one order, which is none that chance brings."""
    orders = [one.order for one in split.passes]
    count = len(set(orders[0]))
    endless = not split.first.epoch.complete and split.first.epoch.said < 0
    if len(orders) < 2 or count < _LEAST or endless or any(o != orders[0] for o in orders):
        return False
    batches = len(split.first.batches)
    return batches > 1 and factorial(min(batches, 20)) ** (len(orders) - 1) >= _CHANCE


def _is_ascending(split: Split) -> bool:
    """Say whether the indices of an epoch only rise."""
    order = split.first.indices
    return order == sorted(order)


def _why(split: Split) -> str:
    """Guess why the order is always the same."""
    sampler = split.first.epoch.sampler
    if sampler == "DistributedSampler":
        return "DistributedSampler shuffles by its epoch, which nobody sets"
    if sampler == "SequentialSampler":
        return "shuffle=True is not set"
    return "perhaps what shuffles is seeded anew in each epoch" if sampler else ""


@invariant("loader")
def evaluation_order_is_fixed(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each evaluation sees the same samples, in the same order.

    Judges: two epochs of each split called val, test, eval or dev: the sampler's indices, and the
        samples themselves. A note, unless shuffled=False is declared.
    Allows: shuffled=True; streams without an end; epochs that were not looked at to their end.
    Misses: what changes in a third epoch, or after the first 64 batches, or the first tenth, of a
        second one that was the same so far; randomness in the model.
    Why: an evaluation on other crops, or other samples, is another measurement each time: the
        best of many epochs is then the luckiest.
    Source: PyTorch's notes on reproducibility, section DataLoader.
    """
    for split in each_split(trace):
        if not split.evaluates or split.option("shuffled") is True or len(split.passes) < 2:
            continue
        rank = Rank.BROKEN if split.option("shuffled") is False else Rank.NOTE
        yield from _find_new_order(split, rank)
        yield from _find_new_samples(split)


def _find_new_order(split: Split, rank: Rank) -> Iterator[Finding]:
    """Yield a finding where the second epoch of an evaluation has another order."""
    one, two = split.passes[:2]
    pairs = list(zip(one.order, two.order, strict=False))  # one may not have been seen to its end
    place = next((i for i, (was, now) in enumerate(pairs) if was != now), None)
    known = bool(one.indices and two.indices)
    same = known or sorted(one.order) == sorted(two.order)
    if place is not None and same and len(set(one.order)) > 1:
        yield Finding(
            f"`{split.trace.subject}` evaluates in another order each time",
            f"split {split.name!r}, from sample {place} on",
            "another order in the second epoch",
            "the same order",
            why="shuffle=True is set for a split that is not trained on"
            if one.epoch.sampler == "RandomSampler"
            else "",
            rank=rank,
            event=two.epoch,
        )


def _find_new_samples(split: Split) -> Iterator[Finding]:
    """Yield a note where the same samples of an evaluation are others in the second epoch."""
    one, two = split.passes[:2]
    known = one.indices and sorted(one.indices) == sorted(two.indices)
    if not known or not len(one.indices) == len(one.prints) == len(two.prints):
        return
    was = dict(zip(one.indices, one.prints, strict=False))
    now = dict(zip(two.indices, two.prints, strict=True))
    changed = [index for index, print_ in now.items() if was[index] != print_]
    if changed:
        yield note(
            f"`{split.trace.subject}` evaluates on other inputs each time",
            f"split {split.name!r}, sample {changed[0]} of the dataset",
            portion(len(changed), len(now), "samples")
            + f" differ ({percent(len(changed) / len(now))})",
            "the same inputs in each epoch",
            why="perhaps the random augmentation of the training is left on",
            event=two.epoch,
        )
