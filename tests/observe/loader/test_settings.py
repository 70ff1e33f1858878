"""What real loaders' settings come to on this machine."""

import os
import time

import pytest
import torch
from torch.utils.data import DataLoader

from tests.observe.loader.probed import Drawing, loader, rows, told


def test_a_loader_without_workers_is_timed() -> None:
    """Waiting and computing are told apart."""
    dataset = Drawing(lambda _: time.sleep(0.01) or 0.0, 12)
    event = told("settings", loader(dataset))["batch"]
    assert event.measured >= 0.04
    assert event.reference < event.measured / 2


def test_workers_are_counted_against_the_cores() -> None:
    """Those that this process may use."""
    event = told("settings", loader(rows(), num_workers=2))["workers"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert (event.measured, event.reference) == (2, cores)


def test_a_quick_start_is_not_told() -> None:
    """Nor is anything that a loader without workers would be told for."""
    quantities = set(told("settings", loader(rows(), num_workers=1)))
    assert quantities <= {"workers", "prefetched", "unpinned", "start"}
    assert "batch" not in quantities


def slow(_worker: int) -> None:
    """Open what takes a while."""
    time.sleep(0.5)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_slow_start_is_told_unless_workers_last(lasting: bool) -> None:
    """Against what empty workers take, and the rest of the epoch."""
    options = {"num_workers": 1, "worker_init_fn": slow, "persistent_workers": lasting}
    event = told("settings", loader(rows(), **options)).get("start")
    assert (event is None) == lasting
    assert event is None or event.measured > 0.3


def test_prefetched_bytes_are_counted() -> None:
    """Workers times prefetched batches times the bytes of a batch."""
    build = loader(rows(), num_workers=2, prefetch_factor=3)
    event = told("settings", build)["prefetched"]
    assert event.measured == 2 * 3 * 4 * 4 * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="pinning matters where there is a device")
@pytest.mark.parametrize("pinned", [True, False])
def test_pinning_without_a_device_is_nobodys_affair(pinned: bool) -> None:
    """It costs nothing."""
    assert "unpinned" not in told("settings", loader(rows(), pin_memory=pinned))


def test_what_is_no_dataloader_is_not_told_of() -> None:
    """Its settings are not known."""
    assert told("settings", lambda: [torch.randn(4, 3) for _ in range(5)]) == {}


def test_ranks_that_cannot_run_here_are_not_counted() -> None:
    """Eight declared ranks on a machine without eight devices are one at a time."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank."""
        return DataLoader(rows(), batch_size=4, num_workers=1)

    event = told("settings", build, ranks=(8,))["workers"]
    assert event.measured == min(8, max(1, torch.cuda.device_count()))
