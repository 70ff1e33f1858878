"""Judgement of how large batches are, and how an epoch ends."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.loader.wording import Split, each_split, samples


@invariant("loader")
def last_batch_is_as_declared(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Batches have the declared size, and the last one is short or dropped as declared.

    Judges: splits with a declared `batch` or `last`: the sizes of the batches of the first epoch,
        and whether samples are left out though last="short".
    Allows: one short batch at the end, for each worker of an iterable dataset.
    Misses: batches of tokens or of like lengths, whose size is not declared.
    Why: a last batch of one sample stops batch normalisation and weighs as much as a full one; one
        that is dropped in an evaluation is missing from the metric.
    Source: PyTorch's "Expected more than 1 value per channel when training", and its drop_last.
    """
    for split in each_split(trace):
        if split.option("batch") is None and split.option("last") is None:
            continue
        yield from _find_odd_size(split)
        yield from _find_odd_end(split)


def _find_odd_size(split: Split) -> Iterator[Finding]:
    """Yield a finding for the first batch that is neither full nor a last one."""
    batches, epoch = split.first.batches, split.first.epoch
    declared = split.option("batch")
    full = declared if isinstance(declared, int) else max(batch.size for batch in batches)
    short = epoch.workers if epoch.kind == "stream" and epoch.workers else 1
    wrong = [b for b in batches if b.size != full]
    mistaken = [b for b in wrong if b.size > full or len(wrong) > short]
    lonely = len(batches) == len(wrong) and len(batches) > 1
    if mistaken or lonely:
        batch = (mistaken or wrong)[0]
        yield Finding(
            f"the batches of `{split.trace.subject}` are not of the declared size",
            f"split {split.name!r}, batch {batch.index}",
            samples(batch.size),
            samples(full),
            event=batch,
        )


def _find_odd_end(split: Split) -> Iterator[Finding]:
    """Yield a finding where a last batch is short, or dropped, against what is declared."""
    one, last = split.first, split.option("last")
    if not one.epoch.complete or last is None:
        return
    final = one.batches[-1]
    full = max(batch.size for batch in one.batches)
    if last == "dropped" and final.size < full:
        yield Finding(
            f"`{split.trace.subject}` serves a short last batch that should be dropped",
            f"split {split.name!r}, batch {final.index}",
            samples(final.size),
            samples(full),
            event=final,
        )
    if last == "short" and 0 <= one.epoch.samples < one.epoch.due:
        yield Finding(
            f"`{split.trace.subject}` drops a last batch that should be served",
            f"split {split.name!r}, after batch {final.index}",
            samples(one.epoch.samples) + " served",
            samples(one.epoch.due),
            event=final,
        )
