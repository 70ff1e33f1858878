"""When data sets are tried: before the second pass over what was trained on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.second_passes import SecondPasses


class Rows(Dataset):
    """Rows of numbers."""

    def __init__(self) -> None:
        self.rows = torch.randn(24, 3)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def __getitem__(self, index):
        """Return a row."""
        return self.rows[index]


def stack(rows):
    """Put rows together as the user likes."""
    return torch.stack(rows)


def told(passes) -> list[tuple[DataLoader, bool]]:
    """Record passes through loaders, some of which are learned from, and return what was told."""
    seen = []
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        recorder.watcher(SecondPasses).listeners.append(lambda *told: seen.append(told))
        for loader, learns in passes:
            for batch in loader:
                loss = model(batch).square().mean()
                if learns:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    return seen


def test_the_second_pass_is_told_once() -> None:
    """With its loader, and whether workers will read."""
    loader = DataLoader(Rows(), batch_size=8)
    assert told([(loader, True)]) == []
    assert told([(loader, True)] * 4) == [(loader, False)]
    several = DataLoader(Rows(), batch_size=8, num_workers=1)
    assert told([(several, True)] * 3) == [(several, True)]


def test_what_is_not_trained_on_is_not_tried() -> None:
    """An evaluation goes over its data again and again."""
    loader, other = DataLoader(Rows(), batch_size=8), DataLoader(Rows(), batch_size=8)
    passes = [(loader, True), (other, False)] * 3
    assert told(passes) == [(loader, False)]


def test_lists_are_known_by_their_loaders() -> None:
    """Another list may be where one was."""
    rows = list(Rows().rows)
    loaders = [DataLoader(rows, batch_size=8, collate_fn=stack) for _ in range(2)]
    assert told([(each, True) for each in loaders]) == []
    assert told([(loaders[0], True)] * 2) == [(loaders[0], False)]
    plain = DataLoader(rows, batch_size=8)
    assert told([(plain, True)] * 2) == []
