"""What real batches are seen to share."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.observe.loader.probed import probed
from trainguard.events.loader import Serving


class Kept(Dataset):
    """Rows that a function reads, with what it needs for that."""

    def __init__(self, read, array: bool = False) -> None:
        self.rows = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)) + 5
        self.array = self.rows.numpy().copy() if array else None
        self.cache, self.known = torch.zeros(40, 4), torch.zeros(40, dtype=torch.bool)
        self.rng, self.reads = np.random.default_rng(0), 0
        self.read = read

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int):
        """Read one row."""
        self.reads += 1
        return self.read(self, index)


def cached(self: Kept, index: int) -> torch.Tensor:
    """Compute a row once."""
    if not self.known[index]:
        self.cache[index], self.known[index] = self.rows[index].cumsum(0), True
    return self.cache[index]


def masked(self: Kept, index: int) -> torch.Tensor:
    """Mask some of a row, where it stands."""
    row = self.rows[index]
    row[torch.rand(4) < 0.4] = 0
    return row


HARMLESS = {
    "views": lambda self, i: self.rows[i],
    "a cache": cached,
    "a cache under noise": lambda self, i: cached(self, i) + self.rng.normal(),
    "a generator": lambda self, i: self.rows[i] + self.rng.normal(),
    "noise of random": lambda self, i: self.rows[i] + random.random(),
    "noise of the system": lambda self, i: self.rows[i] + np.random.default_rng().normal(),
    "a counter": lambda self, i: self.rows[i] + self.reads,
    "a copy": lambda self, i: self.rows[i].clone().sub_(1),
    "once and for all": lambda self, i: self.rows[i].clamp_(0, 1),
    "not a number": lambda self, i: self.rows[i].mul(float("nan")),
}
EDITS = {
    "normalised": lambda self, i: self.rows[i].sub_(1),
    "noise": lambda self, i: self.rows[i].add_(torch.randn(4)),
    "masked": masked,
}


def loader(read, **options):
    """Return a function that makes a shuffling loader of such rows."""
    array = options.pop("array", False)
    return lambda: DataLoader(Kept(read, array), batch_size=4, shuffle=True, **options)


def found(build, **declared) -> list[tuple[str, str]]:
    """Return the quantities that are told, with their details."""
    events = probed("storage", build, **declared)
    return [(e.quantity, e.detail) for e in events if isinstance(e, Serving)]


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_changes_nothing_that_is_served(name: str, workers: int) -> None:
    """Views, caches, generators and counters are no edits."""
    assert found(loader(HARMLESS[name], num_workers=workers)) == []


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_in_place_is_told(name: str) -> None:
    """With the name of the array, and how much of it."""
    dataset = Kept(EDITS[name])
    (event,) = probed("storage", {"train": DataLoader(dataset, batch_size=4)})
    assert (event.at, event.reference) == ("rows", 160)
    assert 0 < event.measured <= 32


def test_an_edit_of_an_array_is_told() -> None:
    """A tensor of an array shares its memory."""

    def read(self: Kept, index: int) -> torch.Tensor:
        """Normalise a row of the array where it stands."""
        row = self.array[index]
        row /= 2
        return torch.from_numpy(row)

    assert found(loader(read, array=True)) == [("edited", "in the process")]


@pytest.mark.parametrize(
    ("lasting", "where"), [(True, "in lasting workers"), (False, "in workers")]
)
def test_where_the_edit_happens_is_told(lasting: bool, where: str) -> None:
    """Workers that last keep it."""
    build = loader(EDITS["normalised"], num_workers=2, persistent_workers=lasting)
    assert found(build) == [("edited", where)]


def test_an_edit_by_the_collate_function_is_told() -> None:
    """It is given the views."""

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        """Scale the samples where they stand."""
        for sample in samples:
            sample.mul_(0.5)
        return torch.stack(samples)

    assert found(loader(HARMLESS["views"], collate_fn=collate)) == [("edited", "in the process")]


class Filled:
    """Stacks samples into a buffer: the same one each time, or another."""

    def __init__(self, buffers: int) -> None:
        self.buffers = [torch.empty(4, 4) for _ in range(buffers)]
        self.calls = 0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        """Fill the next buffer."""
        self.calls += 1
        buffer = self.buffers[self.calls % len(self.buffers)]
        return torch.stack(samples, out=buffer)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_buffer_that_is_filled_again_is_told(workers: int) -> None:
    """In the process, and in the shared memory of real workers."""
    build = loader(HARMLESS["views"], collate_fn=Filled(1), num_workers=workers)
    assert ("overwritten", "") in found(build)


def test_two_buffers_in_turn_are_told_too() -> None:
    """The batch before the last is overwritten."""
    build = loader(HARMLESS["views"], collate_fn=Filled(2))
    assert ("overwritten", "") in found(build)


def test_slices_of_a_stream_are_no_edits() -> None:
    """Overlapping windows of one tensor share their memory, and nobody writes."""

    class Windows(IterableDataset):
        """Windows of one long tensor."""

        def __init__(self) -> None:
            self.wave = torch.arange(200.0)

        def __iter__(self):
            """Serve windows that overlap by half."""
            yield from (self.wave[start : start + 20] for start in range(0, 180, 10))

    assert found(lambda: DataLoader(Windows(), batch_size=None)) == []


def test_batches_that_are_made_beforehand_are_passed() -> None:
    """A list of batches is a loader too."""
    assert found(lambda: [torch.randn(4, 3) for _ in range(5)]) == []


def test_an_iterator_is_read_by_nobody() -> None:
    """It can be read only once."""
    assert found(lambda: iter([torch.randn(4, 3) for _ in range(5)])) == []
