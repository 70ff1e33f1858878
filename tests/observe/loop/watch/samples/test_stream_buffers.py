"""Streams that are shuffled through a buffer, and what is left in it."""

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from trainguard.observe.loop.recorder import Recorder

ROWS, BUFFER = 400, 80


def source() -> Iterator[torch.Tensor]:
    """Yield the rows of a file."""
    for number in range(ROWS):
        yield torch.full((3,), number / ROWS)


def mixed(end):
    """Return a stream that is shuffled through a buffer, and how it ends."""

    def stream():
        """Yield a row of the buffer for each one that is read."""
        draws, buffer = random.Random(0), []
        for row in source():
            if len(buffer) < BUFFER:
                buffer.append(row)
                continue
            place = draws.randrange(BUFFER)
            yield buffer[place]
            buffer[place] = row
        yield from end(draws, buffer)

    return stream


def keep(draws, buffer):
    """Leave what is left."""
    return iter(())


def pour(draws, buffer):
    """Serve what is left, and leave it in the list."""
    draws.shuffle(buffer)
    yield from buffer


def pop(draws, buffer):
    """Take out what is left, one by one."""
    while buffer:
        yield buffer.pop()


def nested():
    """Yield from a stream that is read by another one."""
    for row in mixed(keep)():
        yield row * 1


def handed_on():
    """Yield what another stream does, as it is."""
    inner = mixed(keep)()
    yield from inner


def popped():
    """Yield the first of a list that is filled up, which is how a queue is shuffled too."""
    buffer = []
    for row in source():
        buffer.append(row)
        if len(buffer) > BUFFER:
            yield buffer.pop(0)


def windows():
    """Yield a window of the latest rows, as a whole."""
    latest = []
    for row in source():
        latest = [*latest, row] if len(latest) < BUFFER else [*latest[1:], row]
        yield torch.stack(latest).mean(0)


def context():
    """Yield each row as it comes, and keep the latest ones."""
    latest = []
    for row in source():
        latest.append(row)
        if len(latest) > BUFFER:
            latest.pop(0)
        yield latest[-1]


def shortened():
    """Yield so many rows of another stream, which goes on."""
    yield from itertools.islice(mixed(keep)(), 200)


def limited():
    """Yield so many rows of another stream, which could go on."""
    inner = mixed(keep)()
    for _ in range(200):
        yield next(inner)


def copied(draws, buffer):
    """Serve copies of what is left."""
    yield from (row.clone() for row in buffer)


def stopped():
    """Yield so many rows."""
    buffer, count = [], 0
    for row in source():
        buffer.append(row)
        if len(buffer) > BUFFER:
            yield buffer.pop(0)
            count += 1
        if count == 200:
            break


class Stream(IterableDataset):
    """A data set of what a function yields."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        """Begin anew."""
        return self.make()


def left(make, batch: int | None = 16, workers: int = 0, most: int = 1000) -> list[float]:
    """Return how many samples are found left in two passes through a stream."""
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        loader = DataLoader(Stream(make), batch, num_workers=workers)
        for _ in range(2):
            for number, rows in enumerate(loader):
                optimizer.zero_grad()
                net(rows).square().mean().backward()
                optimizer.step()
                if number == most:
                    break
    assert "faults" not in recorder.trace.conditions
    return [e.measured for e in recorder.trace if getattr(e, "probe", "") == "left in a buffer"]


@pytest.mark.parametrize("batch", [16, 7, None])
@pytest.mark.parametrize(
    "make", [mixed(keep), handed_on, popped], ids=["mixed", "handed", "popped"]
)
def test_samples_that_are_left(make, batch) -> None:
    """Each pass ends with a buffer full of rows."""
    (found,) = left(make, batch)
    assert BUFFER - 16 <= found <= BUFFER


@pytest.mark.parametrize("batch", [16, 7, None])
@pytest.mark.parametrize(
    "make",
    [
        mixed(pour),
        mixed(pop),
        windows,
        context,
        source,
        nested,
        shortened,
        limited,
        mixed(copied),
        stopped,
    ],
)
def test_samples_that_are_served(make, batch) -> None:
    """What is left is served; or what is in a list has been, or is no sample."""
    assert left(make, batch) == []


def test_a_pass_that_is_left() -> None:
    """Nothing is known of a stream that was not gone through to its end; nor of large batches."""
    assert left(mixed(keep), most=5) == []
    assert left(mixed(keep), batch=64) == []


def test_workers() -> None:
    """Their streams are not seen, and not disturbed."""
    assert left(mixed(keep), workers=1) == []
