"""How much of a second epoch is looked at: of a long one a part, where it shows no surprise."""

from collections.abc import Iterable, Sequence
from typing import Any

from trainguard.events.loader import Batch, Epoch
from trainguard.observe.loader.splits import is_evaluation

LEAST = 64  # batches
_PARTS = 10  # of more batches, one in so many


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
