"""Embeddings that several columns are looked up in."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def looks(rows: int, sizes: tuple[int, ...], offsets: tuple[int, ...]) -> list[tuple[float, ...]]:
    """Make four steps over columns of so many numbers, and return what was seen."""
    torch.manual_seed(0)
    table = nn.Embedding(rows, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            columns = [torch.arange(64) % size for size in sizes]
            fields = torch.stack(columns, 1) + torch.tensor(offsets)
            optimizer.zero_grad()
            table(fields).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "fields"]
    return [(probe.measured, probe.reference, probe.step) for probe in found]


def test_columns_that_begin_at_one_row_are_told() -> None:
    """In a table that has rows for all of them."""
    assert looks(60, (30, 20, 10), (0, 0, 0)) == [(30.0, 60.0, 3)]


@pytest.mark.parametrize(
    ("rows", "sizes", "offsets"),
    [
        (60, (30, 20, 10), (0, 30, 50)),
        (30, (30, 30), (0, 0)),
        (500, (30, 20, 10), (0, 0, 0)),
        (32, (30, 2), (0, 0)),
    ],
    ids=["offsets", "one vocabulary", "room to spare", "hardly shared"],
)
def test_other_tables_are_left_alone(
    rows: int, sizes: tuple[int, ...], offsets: tuple[int, ...]
) -> None:
    """Fields with rows of their own, tokens, and what cannot be told."""
    assert looks(rows, sizes, offsets) == []
