"""The events of loaders: what was served, batch by batch, and what was added up over a split."""

from dataclasses import dataclass
from math import nan

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Event):
    """
    One batch that a loader served.

    split, epoch, rank, index: which one; epochs, ranks and batches are counted from 0.
    size: the number of samples in it.
    prints: for each sample, the fingerprint of its inputs; equal samples have equal ones.
    labels: for each sample, the fingerprint of its labels, where the labels are known.
    indices: for each sample, its index in the dataset, where a sampler drew it; for a subset, in
        the dataset that it is a part of.
    shapes: (field, shape) of each field that is a tensor or an array.
    length: the size along the sequence axis; 0 where there is none.
    seconds: how long it took to be served.
    """

    split: str = ""
    epoch: int = 0
    rank: int = 0
    index: int = 0
    size: int = 0
    prints: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    length: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch(Event):
    """
    One pass over a loader, as far as it was looked at, and what the loader says of itself.

    batches, samples: how many were served.
    complete: whether the loader came to its end by itself, within the bounds of the declaration.
    said: the number of batches that `len(loader)` told; -1 where it tells none.
    dataset: the number of samples that the dataset tells; -1 where it tells none.
    due: the number of samples that the sampler tells; -1 where there is none, or one of batches.
    base: which dataset the indices are of: subsets of one dataset have the same one; -1 where
        there are no indices.
    kind: "map" for a dataset that is read by index, "stream" for one that is iterated, "" where
        the loader is no torch DataLoader.
    sampler: the class of the sampler that drew the indices, where there is one.
    replaces: whether that sampler draws with replacement.
    drops: whether the loader says that it drops an incomplete last batch.
    workers: the number of worker processes.
    seconds: how long it took.
    """

    split: str = ""
    epoch: int = 0
    rank: int = 0
    batches: int = 0
    samples: int = 0
    complete: bool = False
    said: int = -1
    dataset: int = -1
    due: int = -1
    base: int = -1
    kind: str = ""
    sampler: str = ""
    replaces: bool = False
    drops: bool = False
    workers: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Event):
    """
    The values of one field of a split, over all batches that were looked at.

    field, dtype: its name ("audio", "0", "inputs.frames") and the type of its elements.
    role: "input", "label", "mask" or "reset".
    count, bad: how many elements there were, and how many of them are not finite.
    at: where the first of those is, in words; or where the first value outside the declared range.
    low, high, mean, deviation: of the finite ones.
    zeros: how many are exactly zero.
    whole: whether all of them are whole numbers.
    outside: how many lie outside the declared range.
    first: the first of those values.
    """

    split: str = ""
    field: str = ""
    dtype: str = ""
    role: str = "input"
    count: int = 0
    bad: int = 0
    at: str = ""
    low: float = nan
    high: float = nan
    mean: float = nan
    deviation: float = nan
    zeros: int = 0
    whole: bool = False
    outside: int = 0
    first: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(Event):
    """
    One thing that was tried on the loaders of a split, or added up over it, beside its batches.

    quantity: what was measured. at: where, in words. measured, reference: the number, and the one
    that it is held against where there is one. detail: what else the report says.
    source: file and line of the user's code where that is known.
    """

    quantity: str
    split: str = ""
    at: str = ""
    measured: float = nan
    reference: float = nan
    detail: str = ""
    source: str = ""


LOADER_EVENTS = (Batch, Epoch, Field, Serving)
