"""Loaders over Hugging Face datasets: tables, streams in shards, text that a collator pads."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import trainguard as tg

datasets.disable_progress_bars()
FOLDER = TemporaryDirectory(prefix="datasets")
FIELDS = {"signal": tg.real("B T", -6, 6), "label": tg.integer("B", 0, 4)}
SPLITS = {"train": {"chunk": 50, "batch": 8, "shuffled": True}, "test": {"batch": 8}}


@cache
def table() -> datasets.DatasetDict:
    """Write a table of signals and labels to files, two splits of it, and open it from there."""
    generator = np.random.default_rng(3)
    rows = {
        "signal": generator.normal(size=(120, 50)).astype(np.float32).clip(-6, 6),
        "label": np.arange(120) % 5,
    }
    divided = datasets.Dataset.from_dict(rows).train_test_split(test_size=24, seed=1)
    divided.save_to_disk(FOLDER.name, num_shards={"train": 4, "test": 1})
    return datasets.load_from_disk(FOLDER.name)


@cache
def files() -> list[str]:
    """Write the training rows as lines of JSON in several files, and return their paths."""
    paths = [str(Path(FOLDER.name) / f"part-{index}.jsonl") for index in range(4)]
    for index, path in enumerate(paths):
        table()["train"].shard(4, index).to_json(path)
    return paths


def mapped(split: str, workers: int = 0) -> DataLoader[Any]:
    """Return a loader of the rows as tensors."""
    rows = table()[split].with_format("torch")
    return DataLoader(rows, 8, shuffle=split == "train", num_workers=workers)


def scaled(row: dict[str, Any]) -> dict[str, Any]:
    """Halve a signal, as a preprocessing that is cached."""
    return {"signal": row["signal"] / 2}


def preprocessed(split: str) -> DataLoader[Any]:
    """Return a loader of rows that were mapped, filtered and sorted."""
    rows = table()[split].with_format("torch").map(scaled, load_from_cache_file=False)
    rows = rows.filter(lambda row: row["label"] < 4, load_from_cache_file=False)
    return DataLoader(rows.sort("label"), 8, shuffle=split == "train", drop_last=split == "train")


def streamed(split: str, workers: int = 2) -> DataLoader[Any]:
    """Return a loader of a stream of four shards, shuffled through a buffer."""
    stream = table()[split].to_iterable_dataset(num_shards=4 if split == "train" else 1)
    if split == "train":
        stream = stream.shuffle(seed=5, buffer_size=32)
    return DataLoader(
        stream.with_format("torch"), 8, num_workers=workers if split == "train" else 0
    )


def from_files() -> DataLoader[Any]:
    """Return a loader of a stream of files."""
    stream = datasets.load_dataset(
        "json", data_files=files(), split="train", streaming=True, cache_dir=FOLDER.name
    )
    stream = stream.shuffle(seed=2, buffer_size=16).with_format("torch")
    return DataLoader(stream, 8, num_workers=2)


def of_rank(rank: int, world_size: int) -> DataLoader[Any]:
    """Return the loader of one rank's rows."""
    rows = split_dataset_by_node(table()["train"], rank=rank, world_size=world_size)
    return DataLoader(rows.with_format("torch"), 8, shuffle=True)


def stream_of_rank(rank: int, world_size: int) -> DataLoader[Any]:
    """Return the loader of one rank's shards of a stream."""
    stream = table()["train"].to_iterable_dataset(num_shards=8).shuffle(seed=4, buffer_size=16)
    stream = split_dataset_by_node(stream, rank=rank, world_size=world_size)
    return DataLoader(stream.with_format("torch"), 8)


def continued(workers: int, shuffles: bool = True) -> StatefulDataLoader[Any]:
    """Return a loader of a stream that can be saved within an epoch."""
    stream = table()["train"].to_iterable_dataset(num_shards=4)
    stream = stream.shuffle(seed=6, buffer_size=8) if shuffles else stream
    return StatefulDataLoader(stream.with_format("torch"), 8, num_workers=workers)


COMMON = {"splits": SPLITS, "fields": FIELDS, "labels": ("label",)}

rows = tg.Loader(mapped, **COMMON)
rows_in_workers = tg.Loader(mapped, arguments={"workers": 2}, **COMMON)
mapped_rows = tg.Loader(
    preprocessed, splits={"train": {"shuffled": True, "last": "dropped"}, "test": {}}, fields=FIELDS
)
stream = tg.Loader(streamed, **COMMON)
stream_without_workers = tg.Loader(streamed, arguments={"workers": 0}, **COMMON)
json_files = tg.Loader(from_files, splits={"train": {"shuffled": True}}, fields=FIELDS)
rows_of_ranks = tg.Loader(of_rank, splits={"train": {"shuffled": True}}, ranks=(1, 2, 4, 8))
stream_of_ranks = tg.Loader(
    stream_of_rank, splits={"train": {"shuffled": True}}, ranks=(1, 2, 4, 8)
)
resumed_in_order = tg.Loader(
    continued,
    arguments={"workers": 2, "shuffles": False},
    splits={"train": {"shuffled": False}},
    resume=True,
)
resumed = tg.Loader(
    continued,
    arguments={"workers": 0},
    splits={"train": {"shuffled": True}},
    resume=True,
    allow={"resume_continues_the_epoch": "the buffer of a shuffle is not in its state"},
)
