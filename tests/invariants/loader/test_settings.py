"""What is said of settings, on the machine that the trace comes from."""

import pytest

from tests.invariants.loader.tried import judged, ranks, served

NAME = "settings_fit_the_machine"
MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("workers", "cores", "found"),
    [(1, 1, []), (2, 1, []), (3, 1, ["note"]), (4, 2, []), (5, 2, ["note"]), (64, 64, [])],
)
def test_workers_are_held_against_cores(workers: int, cores: int, found: list[str]) -> None:
    """Two for each core are no crowd, and a single core may have two."""
    assert ranks(NAME, [served("workers", workers, cores)]) == found


def test_the_crowd_can_be_set() -> None:
    """The limit is in workers for each core."""
    events = [served("workers", 8, 2)]
    assert judged(NAME, events, **{f"limit:{NAME}": 4.0}) == []


@pytest.mark.parametrize(
    ("seconds", "computed", "cores", "found"),
    [
        (0.19, 0.19, "8 cores", []),
        (0.25, 0.25, "8 cores", ["note"]),
        (0.25, 0.25, "1 cores", []),
        (0.25, 0.01, "1 cores", ["note"]),
    ],
)
def test_slow_batches_without_workers(
    seconds: float, computed: float, cores: str, found: list[str]
) -> None:
    """On a single core, a worker helps only where batches are waited for."""
    assert ranks(NAME, [served("batch", seconds, computed, detail=cores)]) == found


@pytest.mark.parametrize(
    ("start", "epoch", "found"), [(0.2, 0.0, []), (0.6, 9.0, []), (0.6, 0.1, ["note"])]
)
def test_workers_that_are_started_anew(start: float, epoch: float, found: list[str]) -> None:
    """A start is nothing where it is quick, or where the epoch is long."""
    assert ranks(NAME, [served("start", start, epoch)]) == found


@pytest.mark.parametrize(
    ("room", "found"), [(8 * MEGABYTE, ["note"]), (64 * MEGABYTE, []), (float("nan"), [])]
)
def test_prefetched_batches_need_room(room: float, found: list[str]) -> None:
    """Where it is not known how much there is, nothing is said."""
    assert ranks(NAME, [served("prefetched", 16 * MEGABYTE, room)]) == found


@pytest.mark.parametrize(("size", "found"), [(1000, []), (2 * MEGABYTE, ["note"])])
def test_large_batches_are_pinned(size: int, found: list[str]) -> None:
    """Small ones are copied at once either way."""
    assert ranks(NAME, [served("unpinned", size)]) == found


def test_two_splits_are_one_note() -> None:
    """What is true of validation too is not said twice; other settings are."""
    events = [served("workers", 9, 2), served("workers", 9, 2), served("unpinned", MEGABYTE)]
    assert len(judged(NAME, events)) == 2
