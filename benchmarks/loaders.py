"""
What judging a loader costs, against plainly iterating it for the same batches.

10,000 samples of 64 KB, plain and judged in turns: `python -m benchmarks.loaders`. The scan sees
one epoch and the beginning of a second one, and so does the plain loop that it is held against: it
starts a second epoch too, and breaks off after the same batch. What judging costs in epochs is told
beside it. Both are taken by the clock, and by what processors did in this process and in workers.
"""

import resource
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import trainguard as tg
from benchmarks.report import conditions, row
from trainguard.core.catalogue import Invariant, catalogue
from trainguard.core.settings import Settings
from trainguard.events.loader import Epoch
from trainguard.judging.judge import Observations, verdict
from trainguard.judging.verdict import Config

SAMPLES = 10_000
LENGTH = 16_384  # of 4 bytes
BATCH = 32
MOST = 1.3
Declare = Callable[[Any], tg.Loader]
AUDIO = {"audio": tg.real("B T", -1, 1), "label": tg.integer("B", 0, 9)}


class Spent(NamedTuple):
    """Seconds on the clock, and of the processor."""

    clock: float
    processor: float


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


def now() -> Spent:
    """Return the time, and the processor time of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Spent(perf_counter(), sum(each.ru_utime + each.ru_stime for each in used))


def since(started: Spent) -> Spent:
    """Return the seconds of both kinds that have passed."""
    ended = now()
    return Spent(ended.clock - started.clock, ended.processor - started.processor)


def plain(loader: DataLoader[Any], epochs: Iterable[int]) -> Spent:
    """Return the seconds of epochs of so many batches each, with which nothing is done."""
    started = now()
    for batches in epochs:
        for _ in islice(loader, batches):
            pass
    return since(started)


def epochs_of(loader: DataLoader[Any], declare: Declare) -> list[int]:
    """Return how many batches of each epoch the scan looks at."""
    trace = Observations(Settings()).of(declare(loader), Config()).trace("scan")
    return [event.batches for event in trace if isinstance(event, Epoch)]


def judged(loader: DataLoader[Any], declare: Declare) -> Spent:
    """Return the seconds in which a loader is scanned, and judged by all that needs the scan."""
    subject = declare(loader)
    scanned = [made for made in catalogue("loader") if _applies(made, subject)]
    observations = Observations(Settings())
    started = now()
    verdicts = [verdict(subject, made, Config(), observations) for made in scanned]
    seconds = since(started)
    outcomes = {found.invariant.name: found.outcome for found in verdicts}
    assert set(outcomes.values()) == {"passed"}, outcomes
    return seconds


def _applies(made: Invariant, subject: tg.Loader) -> bool:
    """Say whether an invariant is judged by the scan of a subject."""
    return made.probe == "scan" and made.needs <= subject.promise_names


def undeclared(loader: Any) -> tg.Loader:
    """Declare nothing but the split."""
    return tg.Loader({"train": loader})


def declared(loader: Any) -> tg.Loader:
    """Declare the fields with their ranges, and the split with its promises."""
    promises = {"train": {"batch": BATCH, "chunk": LENGTH, "shuffled": True, "last": "short"}}
    return tg.Loader({"train": loader}, splits=promises, fields=AUDIO)


def ratio(name: str, loader: DataLoader[Any], declare: Declare) -> None:
    """Print the paired ratio of a judged loader over a plain one, and the noise."""
    epochs = epochs_of(loader, declare)
    turns = [
        (plain(loader, epochs), judged(loader, declare), plain(loader, epochs)) for _ in range(5)
    ]
    once = [plain(loader, [len(loader)]) for _ in range(3)]
    for kind in Spent._fields:
        told = f"{name}, by the {kind}"
        before, middle, after = (
            [getattr(s, kind) for s in turn] for turn in zip(*turns, strict=True)
        )
        row(
            f"{told}: {' + '.join(map(str, epochs))} plain batches, seconds",
            f"{median(before):.2f}",
        )
        pairs = list(zip(before, middle, after, strict=True))
        row(
            f"{told}: judged / plain (at most {MOST})",
            f"{median(2 * m / (b + a) for b, m, a in pairs):.3f}",
        )
        row(f"{told}: plain / plain, the noise", f"{median(a / b for b, _, a in pairs):.3f}")
        epoch = median(getattr(s, kind) for s in once)
        row(f"{told}: judged, in plain epochs", f"{median(middle) / epoch:.2f}")


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
            loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)
            ratio(f"{where}, nothing declared", loader, undeclared)
            ratio(f"{where}, all declared", loader, declared)


if __name__ == "__main__":
    main()
