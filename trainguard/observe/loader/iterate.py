"""Take batches out of a loader, and write down which samples its sampler drew."""

import multiprocessing
import re
import signal
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data._utils import signal_handling

from trainguard.core.errors import SubjectError, is_ours
from trainguard.observe.tools.isolation import Expired

_PATIENCE = 2.0  # seconds for a process that was told to end
_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process")
_DIED = re.compile(r"DataLoader worker.*(exited unexpectedly|is killed by signal: [^.]*)")


@contextmanager
def serving(loader: Any, split: str, *, lasting: bool = False) -> Iterator[Iterator[Any]]:
    """
    Open a loader for a block, and give an iterator over its batches.

    What the team's code raises, a worker's death and a loader that hangs become SubjectErrors that
    say at which batch. Worker processes are gone after the block, persistent ones too, but for
    `lasting`: these serve the next epoch, and must be ended by `shut(None, loader)`.
    """
    taker = _Taker(loader, split)
    healthy = False
    try:
        yield taker
        healthy = True
    except RuntimeError as error:
        if not _DIED.search(str(error)):
            raise
        # torch raises where its signal finds the process: between two batches, in code of ours.
        raise _fault(error, split, taker.taken) from error
    finally:
        with hold_alarm():
            if not (healthy and lasting and getattr(loader, "persistent_workers", False)):
                shut(taker.iterator, loader, healthy)


class _Taker:
    """The iterator that `serving` gives: it counts batches and tells what stopped them."""

    def __init__(self, loader: Any, split: str) -> None:
        self.split = split
        self.taken = 0
        self.iterator: Any = None
        try:
            self.iterator = self._guard(lambda: iter(loader))
        except StopIteration as error:  # out of a block of ours it would pass for our own fault
            raise _fault(error, split, 0) from error

    def __iter__(self) -> "_Taker":
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        batch = self._guard(lambda: next(self.iterator))
        self.taken += 1
        return batch

    def _guard(self, call: Any) -> Any:
        """Do one thing with the loader; say in a sentence what went wrong with it."""
        try:
            return call()
        except StopIteration:
            raise
        except Expired as expired:
            raise SubjectError(
                f"the loader of {self.split!r} had not served its batch {self.taken} when the time"
                f" was over{expired}",
                "look for a worker that waits for something, try num_workers=0, or give it more"
                " time with timeout=<seconds>",
            ) from None
        except Exception as error:
            if is_ours(error):
                raise
            raise _fault(error, self.split, self.taken) from error


def _fault(error: Exception, split: str, taken: int) -> SubjectError:
    """Say what a loader raised, in the main process or in a worker."""
    text = str(error).strip()
    died, caught = _DIED.search(text), _WORKER.search(text)
    if died or _is_of_a_pipe(error):
        how = died[1] if died else "has closed its end of a pipe"
        return SubjectError(
            f"a worker process of {split!r} died before batch {taken}: it {how}",
            "look for memory that runs out or a native library that crashes; num_workers=0 shows"
            " which sample it is",
        )
    lines = text.splitlines() or ["(no message)"]
    told = lines[-1].partition(": ")[2] or lines[-1] if caught else lines[0]
    kind, where = (caught[1], " in a worker process") if caught else (type(error).__name__, "")
    return SubjectError(
        f"the loader of {split!r} raised {kind}{where} at batch {taken}: {told}",
        "make it run from its beginning to its end by itself first",
    )


def _is_of_a_pipe(error: Exception) -> bool:
    """Say whether multiprocessing has met the end of what a process was to say, in its midst."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return isinstance(error, EOFError) and "multiprocessing" in Path(frames[-1]).parts[-2:]


@contextmanager
def hold_alarm() -> Iterator[None]:
    """Hold back the alarm of a deadline: processes must be ended even when the time is over."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)


def shut(iterator: Any, loader: Any, healthy: bool = True) -> None:
    """End the worker processes of a loader's iterator; those of a faulty one are not waited for."""
    held = getattr(loader, "_iterator", None)  # of persistent workers
    for one in {id(one): one for one in (iterator, held)}.values():
        close = getattr(one, "_shutdown_workers", None)
        if callable(close):
            if not healthy or any(worker.exitcode for worker in getattr(one, "_workers", ())):
                _kill(one)
            with suppress(Exception):
                close()
        elif isinstance(one, Generator):
            with suppress(Exception):
                one.close()
    if callable(getattr(held, "_shutdown_workers", None)):
        loader._iterator = None  # noqa: SLF001 else the next epoch waits for workers that are gone


def _kill(iterator: Any) -> None:
    """End workers that may never answer, once torch does not mind their death."""
    if getattr(iterator, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]  # noqa: SLF001
        iterator._worker_pids_set = False  # noqa: SLF001 torch's own shutdown does the same
    for worker in getattr(iterator, "_workers", ()):
        end(worker)
    # A worker that was killed while it looked at this event holds its lock for ever.
    if hasattr(iterator, "_workers_done_event"):
        iterator._workers_done_event = threading.Event()  # noqa: SLF001 there is nobody left to tell


@contextmanager
def no_process_left() -> Iterator[None]:
    """End the processes that were started in a block and are still there after it."""
    before = {process.pid for process in multiprocessing.active_children()}
    try:
        yield
    finally:
        with hold_alarm():
            for process in multiprocessing.active_children():
                # A manager serves objects that the team may keep for the next time.
                if process.pid not in before and "Manager" not in process.name:
                    end(process)


def end(process: Any) -> None:
    """End a process: politely first, then for good."""
    with suppress(ValueError, OSError):
        process.terminate()
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join(_PATIENCE)


class RecordingSampler:
    """Stands in the place of a loader's sampler: passes everything on, and remembers each draw."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.draws: list[tuple[int, ...]] = []

    def __iter__(self) -> Iterator[Any]:
        """Draw from the sampler."""
        self.draws = []
        for drawn in self._sampler:
            self.draws.append(_indices(drawn))
            yield drawn

    def __len__(self) -> int:
        """Return the sampler's own length."""
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        """Pass on whatever else is asked for."""
        return getattr(self._sampler, name)


@contextmanager
def record_draws(loader: Any) -> Iterator[RecordingSampler | None]:
    """Write down what the sampler of a map-style DataLoader draws in a block; None for others."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        yield None
        return
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, name)
    # Workers that last from one epoch to the next go on with the listener of their first.
    lasting = getattr(getattr(loader, "_iterator", None), "_index_sampler", None)
    listener = lasting if isinstance(lasting, RecordingSampler) else RecordingSampler(sampler)
    # Not setattr: a DataLoader refuses to have its sampler replaced.
    object.__setattr__(loader, name, listener)
    try:
        yield listener
    finally:
        object.__setattr__(loader, name, sampler)


def base_indices(dataset: Any, indices: tuple[int, ...]) -> tuple[int, ...]:
    """Return indices as they are in the dataset that a subset, or a subset of one, is a part of."""
    while isinstance(dataset, Subset):
        try:
            indices = tuple(int(dataset.indices[index]) for index in indices)
        except (IndexError, TypeError, ValueError):
            return ()
        dataset = dataset.dataset
    return indices


def base_of(loader: Any) -> Any:
    """Return the dataset that the samples of a loader come from, past subsets; None if unknown."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    dataset = loader.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def sampler_of(loader: Any) -> Any:
    """Return what draws single samples for a loader, or None where that cannot be known."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    inner = getattr(loader.batch_sampler, "sampler", None)
    return inner if inner is not None else loader.batch_sampler or loader.sampler


def replaces(sampler: Any) -> bool:
    """Say whether a sampler draws with replacement, or by weights, or more often than once."""
    if isinstance(sampler, WeightedRandomSampler):
        return True
    if isinstance(sampler, RandomSampler):
        return bool(sampler.replacement) or sampler.num_samples > len(sampler.data_source)
    return bool(getattr(sampler, "replacement", False))


def told_length(made: Any) -> int:
    """Return the length that a loader or dataset tells; -1 where it tells none."""
    try:
        return len(made)
    except Exception:  # noqa: BLE001 whatever a length of the team's raises, it tells none
        return -1


def _indices(drawn: Any) -> tuple[int, ...]:
    """Return the indices of one draw; none where they are no whole numbers."""
    indices = drawn if isinstance(drawn, list | tuple) else [drawn]
    try:
        return tuple(int(index) for index in indices)
    except (TypeError, ValueError):
        return ()
