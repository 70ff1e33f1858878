"""
The probe of what batches share: memory with later batches, and with the data set.

Serving events: "overwritten", where batches that were kept changed while later ones were served:
`measured` how many, `reference` how many were kept, `at` the first of them. "edited", where serving
changed what the data set holds, and with it what is served: `measured` the elements that changed,
`reference` all of that array, `at` its name; `detail` is "in the process", "in lasting workers" or
"in workers".

An array that changes is no proof: it may be a cache. So the same batches are read under the same
random numbers, once before and once after they were read under others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from trainguard.events.loader import Serving
from trainguard.observe.loader.fingerprints import likeness
from trainguard.observe.loader.iterate import serving
from trainguard.observe.loader.reachable_state import generators, named_arrays, put_back, state_of
from trainguard.observe.loader.splits import Loaders, keep_state
from trainguard.observe.tools.isolation import seed_everything

_KEPT = 6  # batches
_READ = 2  # batches
_LARGEST = 1 << 26  # bytes of one array that is watched
_ALL = 1 << 28  # bytes of all of them

Array = torch.Tensor | np.ndarray


def storage(loaders: Loaders, case: int) -> Iterator[Serving]:
    """Yield what the batches of each split share."""
    made = loaders.make()
    with keep_state(made):
        for split, loader in made.items():
            if hasattr(loader, "__next__"):
                continue  # a generator, which cannot be read twice
            events = (*_overwritten(loader, split), *_observe_edits(loader, split, loaders.seed))
            yield from (replace(event, case=case) for event in events)


def _overwritten(loader: Any, split: str) -> Iterator[Serving]:
    """Keep some batches, and see whether they are still what they were."""
    with serving(loader, split) as batches:
        kept = [(batch, likeness(batch)) for batch in islice(batches, _KEPT)]
        changed = [index for index, (batch, was) in enumerate(kept) if likeness(batch) != was]
    if changed:
        yield Serving(
            quantity="overwritten",
            split=split,
            at=f"batch {changed[0]}",
            measured=len(changed),
            reference=len(kept),
        )


def _observe_edits(loader: Any, split: str, seed: int) -> Iterator[Serving]:
    """Read batches before and after reading them under other random numbers."""
    read = _reader(loader, split)
    held = [(each, state_of(each)) for each in generators(loader).values()]
    watch = _Watch.of(loader)
    seed_everything(seed)
    first = read()
    seed_everything(seed + 1)
    read()
    for generator, state in held:
        put_back(generator, state)
    seed_everything(seed)
    again = read()
    if first != again:
        yield from watch.changes(split, _where(loader))


def _reader(loader: Any, split: str) -> Callable[[], list[int]]:
    """Return a function that serves the first batches, always the same ones, in this process."""
    inside = _inside(loader) if isinstance(loader, DataLoader) else loader

    def read() -> list[int]:
        """Return a print of each of the first batches."""
        with serving(inside, split) as batches:
            return [likeness(batch) for batch in islice(batches, _READ)]

    return read


def _inside(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of the same batches that works in this process."""
    options: dict[str, Any] = {}
    if isinstance(loader.dataset, IterableDataset):
        options = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        options = options if loader.batch_size is not None else {"batch_size": None}
    elif loader.batch_sampler is not None:
        options = {"batch_sampler": list(islice(loader.batch_sampler, _READ))}
    else:
        options = {"sampler": list(islice(loader.sampler, _READ)), "batch_size": None}
    return DataLoader(loader.dataset, collate_fn=loader.collate_fn, **options)


def _where(loader: Any) -> str:
    """Say in which process a loader reads its data set, and how long that lives."""
    if not getattr(loader, "num_workers", 0):
        return "in the process"
    return "in lasting workers" if getattr(loader, "persistent_workers", False) else "in workers"


@dataclass
class _Watch:
    """The arrays that can be reached from a loader, as they were."""

    arrays: list[tuple[str, Array, Array]] = field(default_factory=list)

    @classmethod
    def of(cls, loader: Any) -> "_Watch":
        """Copy the arrays that are not too large."""
        watch, total = cls(), 0
        for name, array in named_arrays(loader):
            total += array.nbytes
            if array.nbytes <= _LARGEST and total <= _ALL:
                watch.arrays.append((name, array, _copy(array)))
        return watch

    def changes(self, split: str, where: str) -> Iterator[Serving]:
        """Yield the array that changed the most, if one did."""
        counted = [(_differing(now, was), name, was) for name, now, was in self.arrays]
        count, name, was = max(counted, key=lambda entry: entry[0], default=(0, "", None))
        if count and was is not None:
            yield Serving(
                quantity="edited",
                split=split,
                at=name,
                measured=count,
                reference=was.numel() if isinstance(was, torch.Tensor) else was.size,
                detail=where,
            )


def _copy(array: Array) -> Array:
    """Return a copy of a tensor or an array."""
    return array.detach().clone() if isinstance(array, torch.Tensor) else np.array(array)


def _differing(now: Array, was: Array) -> int:
    """Count the elements that differ; nan does not differ from nan."""
    if now.shape != was.shape:
        return 0
    if isinstance(now, torch.Tensor) and isinstance(was, torch.Tensor):
        differ = (now.detach() != was) & ~((now.detach() != now.detach()) & (was != was))
        return int(differ.sum())
    one, other = np.asarray(now), np.asarray(was)
    return int(np.count_nonzero((one != other) & ~((one != one) & (other != other))))
