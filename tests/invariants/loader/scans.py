"""What tests of scanned loaders share: hand-written epochs of batches."""

from collections.abc import Iterable, Sequence

from trainguard.events.base import Event
from trainguard.events.loader import Batch, Epoch, Field, Serving


def epoch(
    samples: Sequence[int],
    number: int = 0,
    *,
    split: str = "train",
    size: int = 4,
    labels: Sequence[int] = (),
    indices: Sequence[int] = (),
    length: int = 0,
    **more,
) -> list[Event]:
    """Write one epoch: batches of so many samples, given by their fingerprints."""
    starts = range(0, len(samples), size)
    batches = [
        Batch(
            split=split,
            epoch=number,
            index=index,
            size=len(samples[start : start + size]),
            prints=tuple(samples[start : start + size]),
            labels=tuple(labels[start : start + size]),
            indices=tuple(indices[start : start + size]),
            length=length,
        )
        for index, start in enumerate(starts)
    ]
    told = {"batches": len(batches), "samples": len(samples), "complete": True, **more}
    return [*batches, Epoch(split=split, epoch=number, **told)]


def twice(samples: Sequence[int], again: Sequence[int] | None = None, **more) -> list[Event]:
    """Write two epochs; the second has the same samples where no others are given."""
    later = samples if again is None else again
    return [*epoch(samples, 0, **more), *epoch(later, 1, **more)]


def by_index(indices: Sequence[int], again: Sequence[int], **more) -> list[Event]:
    """Write two epochs of a loader whose sampler is known; a sample's print is 100 + its index."""
    return [
        event
        for number, drawn in enumerate((indices, again))
        for event in epoch([100 + i for i in drawn], number, indices=drawn, **more)
    ]


def lengths(values: Iterable[int], split: str = "train") -> list[Event]:
    """Write one epoch of batches with these lengths along the sequence."""
    batches = [Batch(split=split, index=i, size=4, length=n) for i, n in enumerate(values)]
    return [*batches, Epoch(split=split, batches=len(batches), complete=True)]


def served(quantity: str, measured: float, reference: float, detail: str = "") -> list[Event]:
    """Write one count over a split."""
    told = Serving(
        quantity=quantity,
        split="train",
        at="batch 3, sample 1",
        measured=measured,
        reference=reference,
        detail=detail,
    )
    return [told]


def field(name: str = "audio", **more) -> Field:
    """Write the tally of one field of floating-point numbers between -1 and 1."""
    usual = {"dtype": "float32", "count": 1000, "low": -1.0, "high": 1.0, "mean": 0.0}
    return Field(**{"split": "train", "field": name, "deviation": 0.5, **usual, **more})
