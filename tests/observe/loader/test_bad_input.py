"""Loaders that cannot be looked at: each is told in one sentence, and no process is left."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.observe.loader.iterate import serving, shut
from trainguard.observe.loader.observer import LoaderObservation


class Items(Dataset):
    """A dataset of whatever a function returns."""

    def __init__(self, item: Any, count: int = 20) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def __getitem__(self, index: int) -> Any:
        """Return one item."""
        return self.item(index)


def zeros(_: int) -> torch.Tensor:
    """Return a healthy item."""
    return torch.zeros(3)


def raises(index: int) -> torch.Tensor:
    """Raise at one item."""
    if index == 9:
        raise ValueError("file 9.npy is truncated")
    return torch.zeros(3)


def dies(index: int) -> torch.Tensor:
    """End the process at one item, as the kernel does where memory runs out."""
    if index == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(3)


def hangs(index: int) -> torch.Tensor:
    """Never return at one item."""
    if index == 9:
        time.sleep(600)
    return torch.zeros(3)


def deadlocks(index: int) -> torch.Tensor:
    """Wait for a lock that is never released, deaf to the signal that asks processes to end."""
    if index == 9:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lock = multiprocessing.Lock()
        lock.acquire()
        lock.acquire()
    return torch.zeros(3)


def cut_off() -> Iterator[Any]:
    """Take what a process was to say, whose end of the pipe is closed: it has ended."""
    here, there = multiprocessing.Pipe()
    there.close()
    yield here.recv()


def scanned(build: Any, timeout: float = 60.0, **declared) -> list:
    """Scan a loader."""
    subject = tg.Loader(build, splits=("train",), timeout=timeout, **declared)
    return list(LoaderObservation(subject, "cpu", "float32", Settings()).trace("scan"))


def batches(item: Any, count: int = 20, **options) -> Any:
    """Return a function that builds a loader of batches of four."""
    return lambda: DataLoader(Items(item, count), **{"batch_size": 4, **options})


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (batches(zeros, 0), "the dataset of 'train' is empty"),
        (batches(zeros, 5, batch_size=8, drop_last=True), "serves no batch of its 5 samples"),
        (list, "the loader of 'train' serves no batch"),
        (batches(zeros, collate_fn=lambda _: None), "served None as its batch 0"),
        (batches(zeros, collate_fn=lambda _: {}), "served an empty dict as its batch 0"),
        (
            batches(lambda i: None if i == 6 else i, collate_fn=lambda s: {"x": s}),
            "the field 'x' of 'train' holds None in place of sample 2 of batch 1",
        ),
        (batches(raises), "raised ValueError at batch 2: file 9.npy is truncated"),
        (
            batches(raises, num_workers=2),
            "raised ValueError in a worker process at batch 2: file 9.npy is truncated",
        ),
        (batches(dies, num_workers=2), "a worker process of 'train' died before batch"),
        (cut_off, "a worker process of 'train' died before batch 0: it has closed its end"),
    ],
)
def test_what_stops_a_scan(build: Any, words: str) -> None:
    """The sentence says what it is and where; the way out is beside it."""
    with pytest.raises(SubjectError, match=words) as raised:
        scanned(build)
    assert raised.value.remedy
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_between_two_batches() -> None:
    """PyTorch raises wherever the process is then, also in code that is no loader's."""
    given = DataLoader(Items(zeros), batch_size=4, num_workers=1)
    with (
        pytest.raises(SubjectError, match="a worker process of 'train' died before batch 1"),
        serving(given, "train") as batches_taken,
    ):
        next(batches_taken)
        os.kill(batches_taken.iterator._workers[0].pid, signal.SIGKILL)
        time.sleep(20)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("known", [False, True])
def test_a_worker_that_dies_with_a_lock_is_not_waited_for(known: bool) -> None:
    """One that is killed at the wrong moment leaves locked what torch tells its workers with."""
    given = DataLoader(Items(zeros), batch_size=4, num_workers=1)
    taken = iter(given)
    next(taken)
    with suppress(RuntimeError):  # torch raises where its signal finds the process
        taken._workers[0].kill()
        taken._workers[0].join()
        time.sleep(0.1)
    taken._workers_done_event._cond.acquire()  # in the place of the worker
    shutting = threading.Thread(target=shut, args=(taken, given, not known), daemon=True)
    shutting.start()
    shutting.join(15)
    assert not shutting.is_alive()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("item", [hangs, deadlocks])
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "timeout": 600}])
def test_a_loader_that_hangs_is_ended(item: Any, options: dict) -> None:
    """The time limit ends it, with its workers, those that ignore signals too."""
    started = time.monotonic()
    with pytest.raises(SubjectError, match="had not served its batch 2 when the time was over"):
        scanned(batches(item, **options), timeout=4.0)  # workers begin late on a busy machine
    assert time.monotonic() - started < 12  # nobody waits for workers that hang
    assert multiprocessing.active_children() == []


def test_a_loader_that_hangs_in_this_process_is_ended_where_it_is() -> None:
    """Without workers the sentence names the line."""
    with pytest.raises(SubjectError, match=r"time was over, at .*test_bad_input.py:\d+"):
        scanned(batches(hangs), timeout=1.0)


def test_persistent_workers_are_ended_and_can_be_had_again() -> None:
    """A given loader serves as before, after its workers were ended with the scan."""
    given = DataLoader(Items(zeros), batch_size=4, num_workers=1, persistent_workers=True)
    scanned(given)
    assert multiprocessing.active_children() == []
    assert len(list(given)) == 5
    given._iterator._shutdown_workers()


def test_an_iterator_can_be_used_once() -> None:
    """A given generator has no second epoch, one that a function makes is made again."""
    with pytest.raises(SubjectError, match="is an iterator, which can be used for one epoch only"):
        scanned(torch.zeros(4, 2) for _ in range(3))
    told = scanned(lambda: (torch.randn(4, 2) for _ in range(3)))
    assert [event.batches for event in told if hasattr(event, "batches")] == [3, 3]


def test_a_loader_that_is_empty_the_second_time() -> None:
    """It serves one epoch and nothing after it."""

    class Spent:
        """Serves what is left."""

        left = [torch.zeros(4, 2)] * 3

        def __iter__(self):
            """Serve what is left."""
            while self.left:
                yield self.left.pop()

    with pytest.raises(SubjectError, match="serves nothing in its second epoch"):
        scanned(Spent())


def test_an_endless_loader_is_bounded() -> None:
    """By the declaration, or else at 500 batches; there is no second epoch of it."""
    build = lambda: (torch.randn(4, 2) for _ in iter(int, 1))  # noqa: E731
    (epoch,) = [e for e in scanned(build, batches=7) if hasattr(e, "batches")]
    assert (epoch.batches, epoch.complete) == (7, False)
    (epoch,) = [e for e in scanned(build) if hasattr(e, "batches")]
    assert epoch.batches == 500


def test_a_slow_epoch_is_cut() -> None:
    """Half of the time is shared by the epochs; what is not seen is not judged."""

    def slowly():
        """Serve a batch in every tenth of a second."""
        for _ in range(200):
            time.sleep(0.1)
            yield torch.zeros(4, 2)

    (epoch,) = [e for e in scanned(slowly, timeout=2.0) if hasattr(e, "batches")]
    assert 2 <= epoch.batches <= 8
    assert not epoch.complete


@pytest.mark.parametrize(
    ("item", "collate"),
    [
        (lambda i: f"text {i}", None),
        (lambda i: torch.full((2 + i % 3,), float(i)), list),
        (lambda i: (zeros(i) + i, "cat" if i % 2 else "dog"), None),
        (lambda i: bytes([i] * 5), list),
    ],
)
def test_words_and_ragged_samples_have_fingerprints(item: Any, collate: Any) -> None:
    """Coverage and order are judged by them, though there is no range."""
    told = scanned(batches(item, collate_fn=collate))
    first = [event.prints for event in told if getattr(event, "epoch", 1) == 0 and
             hasattr(event, "prints")]  # fmt: skip
    assert len({print_ for prints in first for print_ in prints}) == 20


def test_words_where_numbers_are_declared() -> None:
    """Labels that are words are told, where their field is declared as whole numbers."""
    words = batches(lambda i: (zeros(i), "cat"))
    with pytest.raises(SubjectError, match="holds words such as 'cat', and numbers are declared"):
        scanned(words, fields={1: tg.integer("B", 0, 9)}, labels=1)
