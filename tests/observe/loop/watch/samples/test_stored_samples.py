"""What serving a sample does to a data set, tried here without a child."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples import stored_samples
from trainguard.observe.loop.watch.samples.second_passes import read_class
from trainguard.observe.loop.watch.samples.stored_samples import (
    _find_near,
    _means_to_store,
    _serve_again,
)


class Stored(Dataset):
    """Rows of numbers that are served by a function of the data set and an index."""

    def __init__(self, serve, rows=None) -> None:
        self.rows = np.random.randn(40, 16) if rows is None else rows
        self.buffer = np.zeros(16)
        self.serve = serve

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def __getitem__(self, index):
        """Return a row."""
        return torch.as_tensor(self.serve(self, index))


def random_bytes():
    """Return rows of numbers as pictures have them."""
    return np.random.randint(0, 256, (40, 16)).astype(np.float32)


def add_noise(data, index):
    """Add to a view of what is stored."""
    row = data.rows[index]
    row += np.random.randn(16)
    return row


def mask(data, index):
    """Mask some tokens of a view of what is stored."""
    row = data.rows[index]
    row[np.random.rand(64) < 0.3] = -1
    return row


def halve(data, index):
    """Scale a tensor in place, and serve a copy of it."""
    return torch.from_numpy(data.rows)[index].mul_(0.5).clone()


def normalise_bytes(data, index):
    """Centre and scale a view by fixed numbers, which soon comes to rest at one value."""
    row = data.rows[index]
    row -= 120
    row /= 60
    return row


def standardise(data, index):
    """Centre and scale a view by its own mean and spread."""
    row = data.rows[index]
    row -= row.mean()
    row /= row.std() + 1e-5
    return row


def scale_once(data, index):
    """Scale a view at the first time alone."""
    row = data.rows[index]
    row /= 60 if np.abs(row).max() > 10 else 1
    return row + np.random.randn(16)


def fill_buffer(data, index):
    """Put each row into the same buffer, with noise."""
    np.add(data.rows[index], np.random.randn(16), out=data.buffer)
    return data.buffer


def normalise(data, index):
    """Divide a view by its own norm."""
    row = data.rows[index]
    row /= np.linalg.norm(row)
    return row


def copy(data, index):
    """Add noise to a copy."""
    return data.rows[index] + np.random.randn(16)


@pytest.mark.parametrize("serve", [add_noise, mask, halve, normalise_bytes])
def test_a_row_that_is_changed_in_place_is_seen(serve) -> None:
    """Whether it is served itself, or a copy of what it was changed to."""
    rows = {mask: np.random.randint(0, 100, (40, 64)), normalise_bytes: random_bytes()}.get(serve)
    (places,) = _serve_again(DataLoader(Stored(serve, rows), 4), [*range(6)]).values()
    assert len(places) >= 18
    assert max(places) < 6 * (64 if serve is mask else 16)


@pytest.mark.parametrize("serve", [fill_buffer, normalise, copy, standardise, scale_once])
@pytest.mark.parametrize("rows", [None, "bytes"])
def test_what_stays_as_it_is_served_is_fine(serve, rows) -> None:
    """The same random numbers serve the same values, whatever was done at the first time."""
    data = Stored(serve, random_bytes() if rows else None)
    assert _serve_again(DataLoader(data, 4), [*range(6)]) == {}


def test_memory_that_is_shared_is_left_alone() -> None:
    """What a child does to it would be seen here."""
    assert stored_samples._copy_arrays(Stored(copy, torch.randn(40, 16).share_memory_())) == {}


class Ageing(Stored):
    """Rows that fade, on purpose."""

    def __getitem__(self, index):
        """Return a row, and let it fade."""
        self.rows[index] *= 0.9
        return torch.as_tensor(self.rows[index])


def test_a_data_set_that_stores_on_purpose_is_known_by_its_source() -> None:
    """A line of it says so."""
    name, source, code = read_class(Ageing(copy))
    assert (name, _means_to_store(code)) == ("Ageing", True)
    assert source.rpartition(":")[0] == __file__
    assert not _means_to_store(read_class(Stored(add_noise))[2])


@pytest.mark.parametrize(("epochs", "workers"), [(1, 0), (2, 0), (2, 1)])
def test_a_data_set_is_tried_before_its_second_pass(epochs, workers, monkeypatch) -> None:
    """What is served once cannot be changed by that, nor what workers have copies of."""
    tried = []
    monkeypatch.setattr(stored_samples, "obstacle", lambda: tried.append(1) or "a test")
    with Recorder("x") as recorder:
        net = nn.Linear(16, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        loader = DataLoader(Stored(copy), 8, num_workers=workers)
        for _ in range(epochs):
            for inputs in loader:
                optimizer.zero_grad()
                net(inputs.float()).square().mean().backward()
                optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert len(tried) == epochs - 1 - workers


def test_samples_of_what_is_looked_at_are_tried() -> None:
    """Of many, those whose elements are among the first ones, also behind a subset."""
    data = Stored(copy, np.zeros((3000, 1)))
    assert _find_near(data) == [*range(1000)]
    assert _find_near(Subset(data, [*range(2999, 899, -1)])) == [*range(2000, 2100)]
    assert _find_near(Subset(data, [2999, 5, 2998])) == [0, 1, 2]
