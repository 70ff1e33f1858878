"""Which samples a sampler drew: their indices are written down while the loader reads them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)


class RecordingSampler:
    """Stands in the place of a loader's sampler: passes everything on, and remembers each draw."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.draws: list[tuple[int, ...]] = []

    def __iter__(self) -> Iterator[Any]:
        """Draw from the sampler."""
        self.draws = []
        for drawn in self._sampler:
            self.draws.append(_indices(drawn))
            yield drawn

    def __len__(self) -> int:
        """Return the sampler's own length."""
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        """Pass on whatever else is asked for."""
        return getattr(self._sampler, name)


@contextmanager
def record_draws(loader: Any) -> Iterator[RecordingSampler | None]:
    """Write down what the sampler of a map-style DataLoader draws in a block; None for others."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        yield None
        return
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, name)
    # Workers that last from one epoch to the next go on with the listener of their first.
    lasting = getattr(getattr(loader, "_iterator", None), "_index_sampler", None)
    listener = lasting if isinstance(lasting, RecordingSampler) else RecordingSampler(sampler)
    # Not setattr: a DataLoader refuses to have its sampler replaced.
    object.__setattr__(loader, name, listener)
    try:
        yield listener
    finally:
        object.__setattr__(loader, name, sampler)


def base_indices(dataset: Any, indices: tuple[int, ...]) -> tuple[int, ...]:
    """Return indices as they are in the dataset that a subset, or a subset of one, is a part of."""
    while isinstance(dataset, Subset):
        try:
            indices = tuple(int(dataset.indices[index]) for index in indices)
        except (IndexError, TypeError, ValueError):
            return ()
        dataset = dataset.dataset
    return indices


def base_of(loader: Any) -> Any:
    """Return the dataset that the samples of a loader come from, past subsets; None if unknown."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    dataset = loader.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def sampler_of(loader: Any) -> Any:
    """Return what draws single samples for a loader, or None where that cannot be known."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    inner = getattr(loader.batch_sampler, "sampler", None)
    return inner if inner is not None else loader.batch_sampler or loader.sampler


def replaces(sampler: Any) -> bool:
    """Say whether a sampler draws with replacement, or by weights, or more often than once."""
    if isinstance(sampler, WeightedRandomSampler):
        return True
    if isinstance(sampler, RandomSampler):
        return bool(sampler.replacement) or sampler.num_samples > len(sampler.data_source)
    return bool(getattr(sampler, "replacement", False))


def told_length(made: Any) -> int:
    """Return the length that a loader or dataset tells; -1 where it tells none."""
    try:
        return len(made)
    except Exception:  # noqa: BLE001 whatever a length of the team's raises, it tells none
        return -1


def _indices(drawn: Any) -> tuple[int, ...]:
    """Return the indices of one draw; none where they are no whole numbers."""
    indices = drawn if isinstance(drawn, list | tuple) else [drawn]
    try:
        return tuple(int(index) for index in indices)
    except (TypeError, ValueError):
        return ()
