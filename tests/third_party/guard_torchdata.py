"""Loaders of torchdata: the StatefulDataLoader, and pipelines of nodes, over files written here."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torchdata.nodes as tn
from torch import Tensor
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import trainguard as tg

FOLDER = TemporaryDirectory(prefix="torchdata")
FIELDS = {"image": tg.real("B 3 12 12", 0, 1), "label": tg.integer("B", 0, 4)}
PROMISES = {"train": {"batch": 8, "shuffled": True}, "val": {"batch": 8, "shuffled": False}}


@cache
def files(split: str) -> list[Path]:
    """Write the images of a split, one file for each, and return the paths."""
    generator = torch.Generator().manual_seed(len(split))
    paths = []
    for index in range(60 if split == "train" else 20):
        paths.append(Path(FOLDER.name) / f"{split}-{index:03d}-{index % 5}.pt")
        torch.save(torch.rand(3, 12, 12, generator=generator), paths[-1])
    return paths


def opened(path: Path) -> dict[str, Any]:
    """Return the image of a file, and the label that stands in its name."""
    return {"image": torch.load(path), "label": int(path.stem[-1])}


class Images(Dataset[dict[str, Any]]):
    """The files of a split by index."""

    def __init__(self, split: str) -> None:
        self.paths = files(split)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read one file."""
        return opened(self.paths[index])


class Stream(IterableDataset[dict[str, Any]]):
    """The files of a split as a stream that each worker has its share of, and its place in."""

    def __init__(self, split: str) -> None:
        self.paths = files(split)
        self.place = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Go on where the place is, to the end of this worker's share."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        share = self.paths[first::step]
        while self.place < len(share):
            self.place += 1
            yield opened(share[self.place - 1])
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the place."""
        self.place = state["place"]


def stateful(
    split: str, workers: int = 0, lasting: bool = False, every: int = 1
) -> StatefulDataLoader[Any]:
    """Return a stateful loader of images."""
    return StatefulDataLoader(
        Images(split),
        batch_size=8,
        shuffle=split == "train",
        num_workers=workers,
        persistent_workers=lasting,
        snapshot_every_n_steps=every,
    )


def streaming(workers: int) -> StatefulDataLoader[Any]:
    """Return a stateful loader of a stream."""
    return StatefulDataLoader(Stream("train"), batch_size=8, num_workers=workers)


def nodes(split: str, workers: int = 0) -> tn.Loader[Any]:
    """Return a pipeline of nodes: sampler, files, batches, in threads where there are workers."""
    shuffles = split == "train"
    sampler = DistributedSampler(Images(split), 1, 0, shuffle=shuffles)  # which has set_epoch
    return pipelined(split, sampler, workers)


def nodes_of_random_sampler(split: str) -> tn.Loader[Any]:
    """Return a pipeline of nodes that shuffles as a DataLoader does."""
    return pipelined(split, RandomSampler(Images(split)))


def pipelined(split: str, sampler: Any, workers: int = 0) -> tn.Loader[Any]:
    """Return a pipeline of nodes."""
    images = Images(split)
    node: Any = tn.SamplerWrapper(sampler)
    node = tn.ParallelMapper(node, images.__getitem__, num_workers=workers, method="thread")
    node = tn.Mapper(tn.Batcher(node, batch_size=8, drop_last=False), collated)
    return tn.Loader(tn.Prefetcher(node, prefetch_factor=2))


def collated(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return samples as a batch."""
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


alone = tg.Loader(stateful, splits=PROMISES, fields=FIELDS, labels=("label",), resume=True)
in_workers = tg.Loader(
    stateful,
    arguments={"workers": 2},
    splits=PROMISES,
    fields=FIELDS,
    labels=("label",),
    resume=True,
)
in_lasting_workers = tg.Loader(
    stateful,
    arguments={"workers": 2, "lasting": True, "every": 3},
    splits=PROMISES,
    resume=True,
)
stream = tg.Loader(
    streaming,
    arguments={"workers": 2},
    splits={"train": {"batch": 8, "shuffled": False}},
    fields=FIELDS,
    resume=True,
)
pipeline = tg.Loader(nodes, splits=PROMISES, fields=FIELDS, labels=("label",), resume=True)
pipeline_that_shuffles_anew = tg.Loader(
    nodes_of_random_sampler,
    splits={"train": {"shuffled": True}},
    resume=True,
    allow={"resume_continues_the_epoch": "SamplerWrapper saves the place and not the shuffle"},
)
pipeline_in_threads = tg.Loader(
    nodes, arguments={"workers": 2}, splits=PROMISES, fields=FIELDS, resume=True
)
