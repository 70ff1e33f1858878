"""What the workers of a loader would do is tried where that can be, and does no harm elsewhere."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from trainguard.observe.loop.recorder import Recorder

ROWS = [(torch.full((4,), float(row)), torch.ones(1)) for row in range(32)]


def do_nothing(worker: int) -> None:
    """Be a `worker_init_fn`: with one, samples are tried."""


def test_a_list_is_served_by_workers() -> None:
    """A list can be a data set too, and has no weak references: it is left alone."""
    with Recorder("x") as recorder:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for inputs, targets in DataLoader(ROWS, 8, num_workers=1, worker_init_fn=do_nothing):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert recorder.steps == 4


class Dropped(Dataset):
    """Rows of which each has as many numbers as its index says, some of which are dropped."""

    def __init__(self, how: str) -> None:
        self.how, self.rng = how, np.random.default_rng(0)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return 32

    def __getitem__(self, index: int):
        """Draw for each number of a row whether it stays."""
        if self.how == "index":
            self.rng = np.random.default_rng(index)
        info = get_worker_info()
        if self.how == "worker" and info is not None and not hasattr(self, "seeded"):
            self.seeded = self.rng = np.random.default_rng(info.seed)
        if self.how == "unused":
            return torch.ones(4), torch.ones(1)
        kept = sum(self.rng.random() > 0.1 for _ in range(1 + index % 7))
        return torch.full((4,), float(kept)), torch.ones(1)


@pytest.mark.parametrize(
    ("how", "found"), [("copied", 1), ("index", 0), ("worker", 0), ("unused", 0)]
)
def test_draws_whose_number_depends_on_the_sample(how: str, found: int) -> None:
    """What each worker begins with counts, unless that is set for each sample."""
    with Recorder("x") as recorder:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for inputs, targets in DataLoader(Dropped(how), 8, num_workers=2):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    assert "generators" in recorder.trace.conditions["looked"]
    assert sum(getattr(e, "probe", "") == "generators" for e in recorder.trace) == found
