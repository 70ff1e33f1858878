"""What tests of probes share: a declaration, probed once, and some rows to serve."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import trainguard as tg
from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.observe.loader.observer import LoaderObservation

TRAIN = {"train": {}}


def probed(probe: str, build: Any, **declared) -> list[Event]:
    """Declare loaders, and return what one probe tells of them."""
    subject = tg.Loader(build, **{"splits": TRAIN, "name": "x", **declared})
    return list(
        LoaderObservation(subject, "cpu", "float32", Settings()).observe_settings(probe, [{}])
    )


def told(probe: str, build: Any, **declared) -> dict[str, Any]:
    """Return what a probe tells, by quantity; the last of each."""
    events = probed(probe, build, **declared)
    return {event.quantity: event for event in events if hasattr(event, "quantity")}


def rows(count: int = 40) -> TensorDataset:
    """Return rows of four numbers."""
    return TensorDataset(torch.randn(count, 4, generator=torch.Generator().manual_seed(1)))


class Drawing(Dataset):
    """Rows with a number on them that is drawn by a given function, whatever it draws from."""

    def __init__(self, draw: Callable[["Drawing"], float], count: int = 40) -> None:
        self.rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
        self.draw = draw

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one row."""
        return self.rows[index] + self.draw(self)


def loader(dataset: Any, **options) -> Callable[[], DataLoader]:
    """Return a function that makes a loader of batches of four, always of the same data set."""

    def build() -> DataLoader:
        """Make the loader."""
        return DataLoader(dataset, **{"batch_size": 4, **options})

    return build
