"""Judgements of which samples an epoch visits, and which splits share some."""

from collections import Counter
from collections.abc import Iterator
from math import sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.loader.wording import EpochPass, Split, each_case, each_split, samples
from trainguard.invariants.loop.wording import percent

_LEAST = 8  # different samples from which on their repetition is no accident
_MOST = 0.5  # of the labels; even transcripts that some speakers share are fewer
_ENOUGH = 100  # samples from which on draws with replacement have a spread of their own


@invariant("loader")
def epoch_visits_each_sample_once(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An epoch visits each sample once, and has as many batches as `len(loader)` says.

    Judges: the indices that a sampler drew, or the samples themselves, where once=True is declared;
        the number of batches against `len(loader)`, that of samples against samples=; and, as
        notes, samples that an evaluation repeats or leaves out, a sampler of the project's own
        that draws as if with replacement, and copies in a stream though once=True is declared.
    Allows: sampling with replacement or by weights, and samplers of the project's own, unless
        once=True is declared; an incomplete last batch that is dropped; equal samples in the data.
    Misses: repeated samples that differ each time, as after augmentation, unless samples= is
        declared. Workers that serve the same part are what shards_partition_the_data judges.
    Why: a third of the data never seen, the rest seen twice, and the loss looks as it should;
        a schedule as long as a wrong length ends too early or never.
    Source: PyTorch's documentation of RandomSampler (replacement) and of DataLoader (its length).
    """
    for split in each_split(trace):
        yield from _other_count(split)
        if split.option("once") is False:
            continue
        yield from _other_length(split)
        drawn = list(_find_wrong_draws(split))
        yield from drawn
        if split.option("once") and not drawn:
            yield from list(_unlike(split)) or _find_copies(split)


def _find_wrong_draws(split: Split) -> Iterator[Finding]:
    """Yield findings about the indices that the sampler drew in a whole epoch."""
    if split.first.indices and split.first.epoch.complete:
        yield from _find_repeats(split)
        yield from _left_out(split)


def _other_count(split: Split) -> Iterator[Finding]:
    """Yield a finding where an epoch has another number of samples than is declared."""
    epoch, promised = split.first.epoch, split.option("samples")
    if not isinstance(promised, int):
        return
    dropped = (_largest(split) - 1) * max(1, epoch.workers if epoch.kind == "stream" else 1)
    allowed = dropped if epoch.drops or split.option("last") == "dropped" else 0
    if epoch.samples > promised or (epoch.complete and epoch.samples < promised - allowed):
        yield Finding(
            f"an epoch of `{split.trace.subject}` has another number of samples than declared",
            f"split {split.name!r}",
            samples(epoch.samples) + (" served" if epoch.complete else " and more"),
            samples(promised),
            event=epoch,
        )


def _other_length(split: Split) -> Iterator[Finding]:
    """Yield a finding where an epoch has another number of batches than the loader says."""
    epoch = split.first.epoch
    allowed = epoch.workers if epoch.kind == "stream" else 0
    longer = epoch.said >= 0 and epoch.batches > epoch.said + allowed
    if longer or (epoch.complete and epoch.said >= 0 and epoch.batches < epoch.said - allowed):
        yield Finding(
            f"`{split.trace.subject}` does not serve as many batches as `len()` says",
            f"split {split.name!r}",
            integer(epoch.batches, "batches") + " served",
            integer(epoch.said, "batches") + ", as len() says",
            why="schedules and progress that count on its length end too early or too late",
            event=epoch,
        )


def _find_repeats(split: Split) -> Iterator[Finding]:
    """Yield a finding for indices that are drawn more than once in an epoch."""
    one = split.first
    counted = Counter(one.indices)
    again = [index for index, times in counted.items() if times > 1]
    judged = split.option("once") or (split.evaluates and not one.epoch.replaces)
    by_chance = not one.epoch.replaces and _draws_by_chance(counted, one.epoch.dataset)
    if again and (judged or by_chance):
        yield Finding(
            f"an epoch of `{split.trace.subject}` visits samples more than once",
            f"split {split.name!r}, sample {again[0]} of the dataset",
            integer(len(one.indices), "samples") + f", of which {len(counted)} are different",
            "each sample once",
            why="the sampler draws with replacement"
            if one.epoch.replaces
            else "the sampler draws each from all of them, as torch.randint does and torch.randperm"
            " does not"
            if by_chance
            else "",
            rank=Rank.BROKEN if split.option("once") else Rank.NOTE,
            event=one.epoch,
        )


def _draws_by_chance(counted: Counter[int], dataset: int) -> bool:
    """Say whether samples come as often as where each draw is from all of them, none preferred."""
    mean = counted.total() / max(dataset, 1)
    if dataset < _ENOUGH or mean < 0.5:
        return False
    spread = sum((times - mean) ** 2 for times in counted.values())
    spread += (dataset - len(counted)) * mean**2
    # Pearson's statistic by its degrees of freedom: 1 for such draws, 0 where each comes once.
    return abs(spread / (mean * (dataset - 1)) - 1) < 3 * sqrt(2 / (dataset - 1))


def _left_out(split: Split) -> Iterator[Finding]:
    """Yield a finding for samples that an epoch should visit and does not."""
    one = split.first
    epoch = one.epoch
    due = epoch.due if epoch.due > 0 else epoch.dataset
    missing = due - len(set(one.indices))
    dropped = _largest(split) - 1 if epoch.drops or split.option("last") == "dropped" else 0
    if missing <= 0 or (split.option("last") == "dropped" and missing <= dropped):
        return
    if split.option("once") and missing > dropped:
        rank = Rank.BROKEN
    elif split.evaluates and not epoch.replaces:
        rank = Rank.NOTE
    else:
        return
    yield Finding(
        f"an epoch of `{split.trace.subject}` leaves samples out",
        f"split {split.name!r}",
        Measure(f"{due - missing} of {samples(due)} visited", due - missing, "samples"),
        samples(due - (dropped if rank is Rank.BROKEN else 0)),
        why="drop_last=True leaves out what does not fill a batch" if epoch.drops else "",
        rank=rank,
        event=epoch,
    )


def _unlike(split: Split) -> Iterator[Finding]:
    """Yield a finding where samples come more often in one whole epoch of a stream than another."""
    whole = [one for one in split.passes[:2] if one.epoch.complete]
    if len(whole) < 2:
        return
    one, two = (each.counts for each in whole)
    differ = [
        print_ for print_ in one if one[print_] != two[print_] and max(one[print_], two[print_]) > 1
    ]
    common = len(one.keys() & two.keys()) / max(1, len(one))
    if common > 0.3 and len(differ) > 0.1 * len(one) and len(one) >= _LEAST:
        yield Finding(
            f"an epoch of `{split.trace.subject}` visits samples more than once",
            f"split {split.name!r}",
            integer(len(whole[0].prints), "samples") + f", of which {len(one)} are different",
            "each sample once",
            why=f"{len(differ)} of them come more often in one epoch than in the next",
            event=whole[0].epoch,
        )


def _find_copies(split: Split) -> Iterator[Finding]:
    """Yield a note where a stream serves some samples again, in an epoch that should have none."""
    one = split.first
    again = [print_ for print_, times in one.counts.items() if times > 1]
    # A few are silence, say; where most are repeated, features are few and discrete.
    stands_out = 0.1 * len(one.counts) < len(again) <= 0.5 * len(one.counts)
    if one.indices or not stands_out or len(one.counts) < _LEAST:
        return
    batch, row = _place(one, set(again), based=False)
    yield note(
        f"an epoch of `{split.trace.subject}` visits samples more than once",
        f"split {split.name!r}, batch {batch}, sample {row}",
        integer(len(one.prints), "samples") + f", of which {len(one.counts)} are different",
        "each sample once",
        why="unless the data have equal samples; samples= says how many an epoch has",
        event=one.epoch,
    )


def _largest(split: Split) -> int:
    """Return the samples of the largest batch of the first epoch."""
    return max(batch.size for batch in split.first.batches)


@invariant("loader")
def splits_are_disjoint(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No sample appears in more than one split.

    Judges: every two splits: indices of one dataset, where both are subsets of it; else the
        fingerprints of the samples.
    Allows: splits that are both called train...; fingerprints shared no more often than twice the
        share of samples repeated inside the first split, as with few and discrete features. Less
        than 1 % (limit: a share) is a note, as for the equal pictures of well-known datasets.
        Labels that are as good as different for each sample, and shared, are a note.
    Misses: samples that are cut or augmented differently, whose labels are few or not known;
        windows that overlap; the same patient.
    Why: metrics on what was trained on are better than anything that comes later.
    Source: scikit-learn's documentation, common pitfalls: data leakage.
    """
    allowed = trace.limit("splits_are_disjoint", 0.01)
    for splits in each_case(trace):
        for place, one in enumerate(splits):
            for other in splits[place + 1 :]:
                if not (one.trains and other.trains):
                    shared = list(_find_overlap(trace, one, other, allowed))
                    yield from shared or _find_shared_labels(one, other)


def _find_overlap(
    trace: Trace[Event], one: Split, other: Split, allowed: float
) -> Iterator[Finding]:
    """Yield a finding for samples that two splits have in common."""
    first, second = one.first, other.first
    indexed = bool(first.indices and second.indices)
    based = indexed and first.epoch.base == second.epoch.base >= 0
    mine, theirs = (_count_samples(one, based), _count_samples(other, based))
    # What is repeated inside a split, such as silence, is no evidence of a leak into another.
    common = {s for s in mine.keys() & theirs.keys() if based or mine[s] == theirs[s] == 1}
    if not common:
        return
    share = len(common) / min(len(mine), len(theirs))
    repeated = sum(times > 1 for times in mine.values()) / len(mine)
    if not based and share <= 2 * repeated:
        return
    batch, row = _place(second, common, based)
    told = f"{len(common)} of {len(theirs)} different samples ({percent(share)})"
    yield Finding(
        f"two splits of `{trace.subject}` share samples",
        f"splits {one.name!r} and {other.name!r}, batch {batch}, sample {row} of {other.name!r}",
        Measure(told, len(common), "samples") if based else Measure(told, 100 * share, "%"),
        integer(0, "samples") if based else percent(allowed),
        why="both are subsets of one dataset, and their indices overlap" if based else "",
        rank=Rank.BROKEN if based or (share > allowed and len(common) > 1) else Rank.NOTE,
        event=second.epoch,
    )


def _find_shared_labels(one: Split, other: Split) -> Iterator[Finding]:
    """Yield a note where other samples of two splits have labels that hardly two samples share."""
    mine, theirs = (Counter(split.first.labels) for split in (one, other))
    common = {label for label in mine.keys() & theirs.keys() if mine[label] == theirs[label] == 1}
    told = all(b.labels for split in (one, other) for b in split.first.batches)
    few = any(len(c) < max(_LEAST, 0.9 * c.total()) for c in (mine, theirs))
    share = len(common) / max(1, min(len(mine), len(theirs)))
    if told and not few and share > _MOST:
        yield note(
            f"two splits of `{one.trace.subject}` share the labels of their samples",
            f"splits {one.name!r} and {other.name!r}",
            percent(share) + f" of {len(theirs)} labels",
            percent(_MOST) + ", as hardly two samples of one split have the same label",
            why="perhaps the samples are the same, and augmented: switch that off, and try again",
            event=other.first.epoch,
        )


def _count_samples(split: Split, based: bool) -> Counter[int]:
    """Count the samples of the first epoch, by index or by fingerprint."""
    return Counter(split.first.indices) if based else split.first.counts


def _place(one: EpochPass, common: set[int], based: bool) -> tuple[int, int]:
    """Return the batch and the row of the first of some samples."""
    return next(
        (batch.index, row)
        for batch in one.batches
        for row, sample in enumerate(batch.indices if based else batch.prints)
        if sample in common
    )
