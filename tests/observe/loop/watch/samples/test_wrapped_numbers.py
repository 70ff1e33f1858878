"""Operations on bytes in what serves a training."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Pairs(Dataset):
    """Two neighbours of some rows, by their differences."""

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).integers(0, 256, (33, 4), dtype=np.uint8)

    def __len__(self) -> int:
        """Return how many there are."""
        return 32

    def __getitem__(self, place):
        """Return the difference of two rows."""
        return torch.from_numpy(self.difference(place)).float()

    def difference(self, place):
        """Return the difference in bytes."""
        return self.rows[place + 1] - self.rows[place]


class Steps(Pairs):
    """The same, as other numbers."""

    def difference(self, place):
        """Return the difference of floats."""
        rows = self.rows.astype(np.float32)
        return rows[place + 1] - rows[place]


def learn(loader, recorder) -> None:
    """Learn from the batches of a loader, in a function that holds it."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with recorder:
        for _ in range(2):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).pow(2).mean().backward()
                optimizer.step()


@pytest.mark.parametrize("kind", [Pairs, Steps])
@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(24))])
def test_a_data_set_of_differences(kind, wrap) -> None:
    """It is found behind a loader, and a part of it; floats are fine."""
    recorder = Recorder("x")
    learn(DataLoader(wrap(kind()), batch_size=8), recorder)
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "wrapped"]
    assert [probe.label for probe in found] == ["self.rows[place + 1] - self.rows[place]"] * (
        kind is Pairs
    )
    assert ("wrapped" in recorder.trace.conditions["looked"]) == (kind is Pairs)
