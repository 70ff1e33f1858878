"""
What judging a loader costs, against plainly iterating it for as many epochs.

10,000 samples of 64 KB, two epochs, plain and judged in turns: `python -m benchmarks.loaders`.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import trainguard as tg
from benchmarks.report import conditions, row
from trainguard.catalogue import Invariant, catalogue
from trainguard.configuration import Config
from trainguard.judge import Observations, verdict
from trainguard.settings import Settings

SAMPLES = 10_000
LENGTH = 16_384  # of 4 bytes
EPOCHS = 2
MOST = 1.3
AUDIO = {"audio": tg.real("B T", -1, 1), "label": tg.integer("B", 0, 9)}


class Clips(Dataset[dict[str, Any]]):
    """Clips of sound in memory, each a view of one tensor, and the class of each."""

    def __init__(self) -> None:
        self.audio = torch.rand(SAMPLES, LENGTH).mul_(2).sub_(1)
        self.labels = torch.randint(0, 10, (SAMPLES,))

    def __len__(self) -> int:
        """Return the number of clips."""
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one clip and its class."""
        return {"audio": self.audio[index], "label": self.labels[index]}


class Files(Clips):
    """The same clips, each read from a file when it is its turn."""

    def __init__(self, clips: Clips, folder: str) -> None:
        self.labels = clips.labels
        self.paths = [Path(folder) / f"{index}.f32" for index in range(SAMPLES)]
        for path, audio in zip(self.paths, clips.audio, strict=True):
            audio.numpy().tofile(path)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one clip and its class."""
        audio = torch.from_numpy(np.fromfile(self.paths[index], np.float32))
        return {"audio": audio, "label": self.labels[index]}


def plain(loader: DataLoader[Any]) -> float:
    """Return the seconds of two epochs in which nothing is done with the batches."""
    started = perf_counter()
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    return perf_counter() - started


def judged(loader: DataLoader[Any], declare: Callable[[Any], tg.Loader]) -> float:
    """Return the seconds in which a loader is scanned, two epochs long, and judged by all of it."""
    subject = declare(loader)
    scanned = [made for made in catalogue("loader") if _applies(made, subject)]
    observations = Observations(Settings())
    started = perf_counter()
    verdicts = [verdict(subject, made, Config(), observations) for made in scanned]
    seconds = perf_counter() - started
    outcomes = {found.invariant.name: found.outcome for found in verdicts}
    assert set(outcomes.values()) == {"passed"}, outcomes
    return seconds


def _applies(made: Invariant, subject: tg.Loader) -> bool:
    """Say whether an invariant is judged by the scan of a subject."""
    return made.probe == "scan" and made.needs <= subject.promised


def undeclared(loader: Any) -> tg.Loader:
    """Declare nothing but the split."""
    return tg.Loader({"train": loader})


def declared(loader: Any) -> tg.Loader:
    """Declare the fields with their ranges, and the split with its promises."""
    promises = {"train": {"batch": 32, "chunk": LENGTH, "shuffled": True, "last": "short"}}
    return tg.Loader({"train": loader}, splits=promises, fields=AUDIO)


def ratio(name: str, loader: DataLoader[Any], declare: Callable[[Any], tg.Loader]) -> None:
    """Print the paired ratio of a judged loader over a plain one, and the noise."""
    plain(loader)
    turns = [(plain(loader), judged(loader, declare), plain(loader)) for _ in range(5)]
    before = statistics.median(first for first, _, _ in turns)
    row(f"{name}: {EPOCHS} plain epochs, seconds", f"{before:.2f}")
    paired = statistics.median(2 * middle / (first + last) for first, middle, last in turns)
    row(f"{name}: judged / plain (at most {MOST})", f"{paired:.3f}")
    noise = statistics.median(last / first for first, _, last in turns)
    row(f"{name}: plain / plain, the noise", f"{noise:.3f}")


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    print(conditions())
    clips = Clips()
    with tempfile.TemporaryDirectory() as folder:
        datasets = {
            "views": (clips, 0),
            "2 workers": (clips, 2),
            "files": (Files(clips, folder), 0),
        }
        for where, (dataset, workers) in datasets.items():
            loader = DataLoader(dataset, 32, shuffle=True, num_workers=workers)
            ratio(f"{where}, nothing declared", loader, undeclared)
            ratio(f"{where}, all declared", loader, declared)


if __name__ == "__main__":
    main()
