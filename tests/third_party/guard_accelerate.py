"""Loaders as Accelerate prepares them: shared between processes, dispatched, and skipped into."""

from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import trainguard as tg

RANKS = (1, 2, 4, 8)


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of numbers, each with a target."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.rows = torch.randn(count, 6, generator=generator)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a row and the sum of it."""
        return {"row": self.rows[index], "target": self.rows[index].sum()}


def prepared(
    rank: int, world_size: int, count: int = 192, seedable: bool = True, whole: bool = False
) -> Any:
    """Return the loader of one process, prepared by Accelerate."""
    loader = DataLoader(Rows(count), 4, shuffle=True, drop_last=whole)
    return prepare_data_loader(
        loader,
        torch.device("cpu"),
        num_processes=world_size,
        process_index=rank,
        put_on_device=False,
        use_seedable_sampler=seedable,
        data_seed=9,
    )


class Counted:
    """A prepared loader that counts what it served, so that an epoch can be continued."""

    def __init__(self) -> None:
        self.loader = prepared(0, 1)
        self.epoch = self.served = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.epoch = epoch
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Any:
        """Serve what is left of the epoch, then it begins anew."""
        skipped = self.served
        loader = skip_first_batches(self.loader, skipped) if skipped else self.loader
        loader.set_epoch(self.epoch)
        for batch in loader:
            self.served += 1
            yield batch
        self.served = 0


def save(loader: Counted) -> dict[str, int]:
    """Return where a loader is."""
    return {"epoch": loader.epoch, "served": loader.served}


def load(loader: Counted, state: dict[str, int]) -> None:
    """Go on from there."""
    loader.epoch, loader.served = state["epoch"], state["served"]


TRAIN = {"train": {"shuffled": True}}

even = tg.Loader(prepared, splits=TRAIN, ranks=RANKS)
uneven = tg.Loader(prepared, arguments={"count": 197}, splits=TRAIN, ranks=RANKS)
dropping = tg.Loader(
    prepared,
    arguments={"count": 197, "whole": True},
    splits={"train": {"shuffled": True, "last": "dropped"}},
    ranks=RANKS,
)
skipped_into = tg.Loader(Counted, splits=TRAIN, resume=(save, load))
