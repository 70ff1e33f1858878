"""Which samplers draw another order for each epoch, and are found where they do not."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

from trainguard.observe.loop.recorder import Recorder


class Own(Sampler):
    """A sampler of the user's own, whose order is that of a seed."""

    def __init__(self, size: int = 64, **switches: bool) -> None:
        self.size, self.epoch = size, 0
        vars(self).update(switches)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.size

    def __iter__(self):
        """Serve them in an order of their own."""
        return iter(torch.randperm(64, generator=torch.Generator().manual_seed(7)).tolist())


class Told(Own):
    """The same, which is to be told the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Note it."""
        self.epoch = epoch


class Ascending(Told):
    """A sampler that is told the epoch, and does not shuffle."""

    def __iter__(self):
        """Serve them as they come."""
        return iter(range(64))


class Batched(Told):
    """A sampler of batches, around one of samples."""

    def __init__(self) -> None:
        super().__init__(8)
        self.sampler = RandomSampler(range(64))

    def __iter__(self):
        """Serve batches."""
        order = [*super().__iter__()]
        return iter([order[start : start + 8] for start in range(0, 64, 8)])


def train(loader: DataLoader, epochs: int = 5) -> None:
    """Learn from some passes through a loader."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(epochs):
        for x, y in loader:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("sampler", "label"),
    [
        (Told(), "Told\nset_epoch"),
        (Told(shuffle=True), "Told\nset_epoch"),
        (Told(shuffle=False), ""),
        (Own(), ""),
        (Ascending(), ""),
        (Batched(), "Batched\nset_epoch"),
    ],
    ids=["told", "switched on", "switched off", "not told", "ascending", "batches"],
)
def test_samplers_that_are_to_be_told_the_epoch(sampler: Sampler, label: str) -> None:
    """Where they are not, each pass repeats the order of the first."""
    data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    many = isinstance(sampler, Batched)
    given = {"batch_sampler": sampler} if many else {"sampler": sampler, "batch_size": 8}
    recorder = Recorder("train")
    with recorder:
        train(DataLoader(data, **given))
    found = [e for e in recorder.trace if getattr(e, "probe", "") == "order"]
    assert "faults" not in recorder.trace.conditions
    assert [(e.label, e.measured, e.reference) for e in found] == ([(label, 4, 5)] if label else [])
