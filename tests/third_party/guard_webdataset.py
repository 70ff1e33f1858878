"""Loaders of webdataset over tar files written here: shards, shuffles, workers and ranks."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import webdataset as wds
from torch.utils.data import DataLoader

import trainguard as tg

FOLDER = TemporaryDirectory(prefix="webdataset")
SHARDS, IN_SHARD = 8, 12
FIELDS = {0: tg.real("B 3 8 8", 0, 1), 1: tg.integer("B", 0, 3)}


@cache
def shards(split: str) -> list[str]:
    """Write the tar files of a split, images and classes, and return their paths."""
    generator = np.random.default_rng(len(split))
    paths = [Path(FOLDER.name) / f"{split}-{index:04d}.tar" for index in range(SHARDS)]
    for shard, path in enumerate(paths):
        with wds.TarWriter(str(path)) as tar:
            for index in range(IN_SHARD):
                image = generator.random((3, 8, 8), dtype=np.float32)
                key = f"{split}{shard:04d}{index:04d}"
                tar.write({"__key__": key, "image.npy": image, "class.cls": index % 4})
    return [str(path) for path in paths]


def pipeline(split: str, seed: int | None = None, **options: Any) -> Any:
    """Return the stream of a split: shards, then samples, then batches."""
    train, seeded = split == "train", seed is not None
    stream = wds.WebDataset(
        shards(split),
        shardshuffle=SHARDS if train else False,
        detshuffle=train and seeded,
        seed=seed or 0,
        **options,
    )
    if train:  # shuffle() draws its seed from the clock, detshuffle() from the epoch
        stream = stream.compose(wds.detshuffle(24, seed=seed)) if seeded else stream.shuffle(24)
    return stream.decode().to_tuple("image.npy", "class.cls").batched(8)


def loader(split: str, workers: int = 0) -> Any:
    """Return the loader of a split as webdataset documents it."""
    return wds.WebLoader(pipeline(split), batch_size=None, num_workers=workers)


def seeded(split: str, workers: int = 0, lasting: bool = False) -> DataLoader[Any]:
    """Return a loader whose shuffles are seeded, and other ones in each epoch."""
    stream = pipeline(split, seed=7)
    return DataLoader(stream, batch_size=None, num_workers=workers, persistent_workers=lasting)


def rebatched(split: str, workers: int = 2) -> Any:
    """Return a loader that shuffles and batches once more behind its workers."""
    samples = pipeline(split).unbatched()
    served = wds.WebLoader(samples, batch_size=None, num_workers=workers)
    return (served.shuffle(24) if split == "train" else served).batched(8)


def endless(split: str) -> Any:
    """Return shards drawn without end, cut into epochs of a fixed length."""
    urls = wds.ResampledShards(shards(split))
    stages = [urls, wds.tarfile_to_samples(), wds.shuffle(24), wds.decode()]
    stream = wds.DataPipeline(*stages, wds.to_tuple("image.npy", "class.cls"), wds.batched(8))
    return wds.WebLoader(stream.with_epoch(12), batch_size=None, num_workers=2).with_epoch(24)


def of_rank(rank: int, world_size: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that gives a rank its share of the shards."""
    return partial(every, first=rank, step=world_size)


def every(source: Iterable[Any], first: int, step: int) -> Iterator[Any]:
    """Yield each of so many, from the first on."""
    yield from islice(source, first, None, step)


def ranked(rank: int, world_size: int) -> DataLoader[Any]:
    """Return the loader of one rank."""
    stream = pipeline("train", seed=3, nodesplitter=of_rank(rank, world_size))
    return DataLoader(stream, batch_size=None)


SPLITS = {"train": {"shuffled": True}, "val": {"shuffled": False}}

plain = tg.Loader(loader, splits=SPLITS, fields=FIELDS, reproducible=False)
in_workers = tg.Loader(
    loader, arguments={"workers": 2}, splits=SPLITS, fields=FIELDS, reproducible=False
)
shuffled_twice = tg.Loader(rebatched, splits=SPLITS, fields=FIELDS, reproducible=False)
deterministic = tg.Loader(seeded, splits=SPLITS, fields=FIELDS)
deterministic_in_workers = tg.Loader(
    seeded, arguments={"workers": 2, "lasting": True}, splits=SPLITS, fields=FIELDS
)
deterministic_in_new_workers = tg.Loader(
    seeded,
    arguments={"workers": 2},
    splits=SPLITS,
    fields=FIELDS,
    allow={"epochs_are_reshuffled": "detshuffle counts epochs in workers, which begin anew"},
)
resampled = tg.Loader(
    endless, splits={"train": {"shuffled": True, "once": False}}, reproducible=False
)
in_ranks = tg.Loader(ranked, splits={"train": {"shuffled": True}}, ranks=(1, 2, 4, 8))
