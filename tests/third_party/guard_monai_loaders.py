"""Loaders of MONAI over volumes written here: files, caches, random crops, patches, kornia."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from kornia import augmentation
from monai import data, transforms
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import trainguard as tg

FOLDER = TemporaryDirectory(prefix="monai")
KEYS = ["image", "label"]


@cache
def volumes(split: str) -> list[dict[str, Any]]:
    """Write the volumes of a split with their segmentations, and return where they are."""
    generator = np.random.default_rng(len(split))
    items = []
    for index in range(24 if split == "train" else 8):
        volume = generator.normal(300.0, 90.0, (12, 12, 12)).astype(np.float32)
        paths = [Path(FOLDER.name) / f"{split}{index}-{key}.npy" for key in KEYS]
        for path, values in zip(paths, (volume, (volume > 380).astype(np.uint8)), strict=True):
            np.save(path, values)
        items.append(dict(zip(KEYS, map(str, paths), strict=True)))
    return items


def steps(random: bool) -> Any:
    """Return what is done to a volume: what is the same each time, then what is drawn."""
    fixed = [
        transforms.LoadImaged(KEYS, image_only=True),
        transforms.EnsureChannelFirstd(KEYS, channel_dim="no_channel"),
        transforms.ScaleIntensityRanged(["image"], 0.0, 700.0, 0.0, 1.0, clip=True),
    ]
    drawn = [
        transforms.RandSpatialCropd(KEYS, (8, 8, 8), random_size=False),
        transforms.RandFlipd(KEYS, prob=0.5, spatial_axis=0),
        transforms.RandGaussianNoised(["image"], prob=0.5, std=0.01),
    ]
    crop = [transforms.CenterSpatialCropd(KEYS, (8, 8, 8))]
    return transforms.Compose(fixed + (drawn if random else crop))


def cached(split: str, workers: int = 0) -> data.DataLoader:
    """Return a loader whose first transforms are made once."""
    train = split == "train"
    dataset = data.CacheDataset(volumes(split), steps(train), progress=False)
    return data.DataLoader(dataset, batch_size=4, shuffle=train, num_workers=workers)


def from_files(split: str) -> data.DataLoader:
    """Return a loader that reads each volume when it is its turn."""
    train = split == "train"
    return data.DataLoader(data.Dataset(volumes(split), steps(train)), batch_size=4, shuffle=train)


def several_crops() -> data.DataLoader:
    """Return a loader that takes three crops of each volume, around what is segmented."""
    crops = transforms.RandCropByPosNegLabeld(KEYS, "label", (6, 6, 6), num_samples=3)
    steps_ = transforms.Compose([steps(random=False), crops])
    return data.DataLoader(data.Dataset(volumes("train"), steps_), batch_size=2, shuffle=True)


def patches() -> data.DataLoader:
    """Return a loader that iterates over the patches of all volumes, in order."""
    grid = data.PatchIterd(keys=KEYS, patch_size=(4, 4, 4))
    stream = data.GridPatchDataset(data.Dataset(volumes("val"), steps(random=False)), grid)
    return data.DataLoader(stream, batch_size=8, num_workers=2)


class Slices(Dataset[Tensor]):
    """The middle slices of the volumes, augmented by kornia."""

    def __init__(self) -> None:
        load = steps(random=False)
        self.slices = [load(item)["image"].as_tensor()[:, 4] for item in volumes("train")]
        self.augment = augmentation.AugmentationSequential(
            augmentation.RandomHorizontalFlip(p=0.5), augmentation.RandomRotation(20.0, p=1.0)
        )

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.slices)

    def __getitem__(self, index: int) -> Tensor:
        """Return one slice, rotated and perhaps flipped."""
        return self.augment(self.slices[index])[0]


def augmented(workers: int = 2) -> DataLoader[Tensor]:
    """Return torch's loader of slices: MONAI's does not come to an end of seeding kornia."""
    return DataLoader(Slices(), batch_size=4, shuffle=True, num_workers=workers)


FIELDS = {"image": tg.real("B C X Y Z", -0.2, 1.2), "label": tg.integer("B C X Y Z", 0, 1)}
SPLITS = {"train": {"batch": 4, "shuffled": True}, "val": {"batch": 4, "shuffled": False}}

in_memory = tg.Loader(cached, splits=SPLITS, fields=FIELDS, labels=("label",))
in_workers = tg.Loader(cached, arguments={"workers": 2}, splits=SPLITS, fields=FIELDS)
read = tg.Loader(from_files, splits=SPLITS, fields=FIELDS, labels=("label",))
crops = tg.Loader(several_crops, splits={"train": {"shuffled": True}}, fields=FIELDS)
grid = tg.Loader(patches, splits=("val",))
rotated = tg.Loader(augmented, splits={"train": {"shuffled": True}})
