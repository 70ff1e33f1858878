"""Data modules of Lightning, by their loader methods, and its CombinedLoader."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import trainguard as tg

FOLDER = TemporaryDirectory(prefix="lightning")


class Digits(Dataset[tuple[Tensor, int]]):
    """Small images in one file, which is opened when first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays: Any = None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._opened()["label"])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one image, standardised, and its class."""
        image = torch.from_numpy(self._opened()["image"][index]).float() / 255
        return (image[None] - 0.5) / 0.29, int(self._opened()["label"][index])

    def _opened(self) -> Any:
        """Return the arrays of the file."""
        if self._arrays is None:
            with np.load(self.path) as file:
                self._arrays = dict(file)
        return self._arrays


class DigitsModule(lightning.LightningDataModule):
    """Writes its data once, splits it with a seed, and serves three loaders."""

    def __init__(self, batch_size: int = 16, workers: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.path = Path(FOLDER.name) / "digits.npz"

    def prepare_data(self) -> None:
        """Write the file, as a download would."""
        if not self.path.exists():
            generator = np.random.default_rng(11)
            images = generator.integers(0, 256, (140, 9, 9), dtype=np.uint8)
            np.savez(self.path, image=images, label=np.arange(140) % 10)

    def setup(self, stage: str) -> None:
        """Split the data as the stage needs it."""
        generator = torch.Generator().manual_seed(42)
        parts = random_split(Digits(self.path), [100, 20, 20], generator)
        self.train, self.val, self.test = parts

    def _loader(self, part: Any, **options: Any) -> DataLoader[Any]:
        """Return the loader of a part."""
        size, workers = self.hparams["batch_size"], self.hparams["workers"]
        return DataLoader(part, size, num_workers=workers, **options)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of the training."""
        return self._loader(self.train, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the loader of the validation."""
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the loader of the test."""
        return self._loader(self.test)


class SeveralModule(DigitsModule):
    """Validates on two sets."""

    def val_dataloader(self) -> list[DataLoader[Any]]:  # type: ignore[override]
        """Return two loaders."""
        return [self._loader(self.val), self._loader(self.test)]

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the loader of a set of its own."""
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(16, 1, 9, 9, generator=generator)
        return self._loader(TensorDataset(images, torch.arange(16) % 10))


def combined(mode: str) -> CombinedLoader:
    """Return two loaders side by side, of labelled and of unlabelled samples."""
    generator = torch.Generator().manual_seed(2)
    labelled = TensorDataset(torch.randn(32, 5, generator=generator), torch.arange(32) % 4)
    unlabelled = TensorDataset(torch.randn(80, 5, generator=generator))
    loaders = {
        "labelled": DataLoader(labelled, 8, shuffle=True),
        "unlabelled": DataLoader(unlabelled, 8, shuffle=True),
    }
    return CombinedLoader(loaders, mode)


def by_fabric(split: str, workers: int = 0) -> Any:
    """Return a loader as Fabric sets it up."""
    module = DigitsModule(workers=workers)
    module.prepare_data()
    module.setup("fit")
    loader = module.train_dataloader() if split == "train" else module.val_dataloader()
    return lightning.Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)


PROMISES = {
    "train": {"batch": 16, "shuffled": True, "last": "dropped"},
    "val": {"shuffled": False, "last": "short"},
    "test": {"shuffled": False},
}
FIELDS = {0: tg.real("B 1 H W", -2, 2), 1: tg.integer("B", 0, 9)}

module = tg.Loader(DigitsModule, splits=PROMISES, fields=FIELDS, labels=("1",))
module_itself = tg.Loader(DigitsModule(workers=2), splits=PROMISES, fields=FIELDS, labels=("1",))
module_unpromised = tg.Loader(DigitsModule)
several_validations = tg.Loader(SeveralModule, splits={"train": {}, "val": {}, "test": {}})
side_by_side = tg.Loader(
    combined, arguments={"mode": "max_size_cycle"}, splits={"train": {"shuffled": True}}
)
shortest = tg.Loader(combined, arguments={"mode": "min_size"}, splits={"train": {"shuffled": True}})
one_by_one = tg.Loader(
    combined, arguments={"mode": "sequential"}, splits={"train": {"shuffled": True}}
)
fabric = tg.Loader(by_fabric, splits={k: PROMISES[k] for k in ("train", "val")}, fields=FIELDS)
fabric_with_workers = tg.Loader(by_fabric, arguments={"workers": 2}, splits=("train", "val"))
