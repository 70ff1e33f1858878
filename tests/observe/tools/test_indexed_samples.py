"""Which samples of which data set a loader serves."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from trainguard.observe.tools import indexed_samples
from trainguard.observe.tools.indexed_samples import DataSets, IndexedSamples

TABLE = [[number] for number in range(10)]


class Held(Dataset):
    """A data set of so many samples that holds something."""

    def __init__(self, rows: int, **held: Any) -> None:
        vars(self).update(held)
        self.rows = rows

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.rows


def serve(known: DataSets, data: Dataset) -> IndexedSamples:
    """Return what a loader serves in order."""
    served = known.find(data, SequentialSampler(data))
    assert served is not None
    return served


def indices(data: Dataset) -> list[int]:
    """Return the numbers of the samples that a loader serves in order."""
    return serve(DataSets(), data).indices.tolist()


def test_samplers() -> None:
    """The usual ones serve all, or what they are told; of others nobody knows."""
    data, own = Held(6, table=TABLE[:6]), [4, 1, 4]
    assert indices(data) == [0, 1, 2, 3, 4, 5]
    for loader, expected in [
        (DataLoader(data, 2, shuffle=True), [0, 1, 2, 3, 4, 5]),
        (DataLoader(data, 2, sampler=SubsetRandomSampler(own)), [1, 4]),
        (DataLoader(Subset(data, [5, 3]), 2), [3, 5]),
    ]:
        served = DataSets().find(loader.dataset, loader.batch_sampler)
        assert served is not None
        assert served.indices.tolist() == expected
    for sampler in (RandomSampler(data, num_samples=3), own):
        assert DataSets().find(data, sampler) is None


def test_data_sets_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those, nor empty ones."""
    monkeypatch.setattr(indexed_samples, "_LARGEST", 5)
    assert indices(Held(5)) == [0, 1, 2, 3, 4]
    for data in (Held(6), Held(0)):
        assert DataSets().find(data, SequentialSampler(data)) is None


def test_a_data_set_inside_of_another_one() -> None:
    """Where it has as many samples, and is the only one."""
    known, inner = DataSets(), Held(10, table=TABLE)
    first = serve(known, inner)
    for outer, inside in [
        (Held(10, inner=inner), True),
        (Held(10, inner=Subset(inner, range(10))), True),
        (Held(5, inner=inner), False),
        (Held(10, inner=inner, other=Held(10)), False),
    ]:
        assert (serve(known, outer).number == first.number) == inside


@pytest.mark.parametrize("made", [list, np.array, torch.tensor])
def test_rows_that_are_listed(made: Any) -> None:
    """Numbers of rows of the tables, which all have as many."""
    assert indices(Held(3, table=TABLE, rows_of=made([7, 2, 5]))) == [2, 5, 7]
    assert indices(Held(3, tables=(TABLE, TABLE[::-1]), rows_of=made([7, 2, 5]))) == [2, 5, 7]


@pytest.mark.parametrize(
    "held",
    [
        {"table": TABLE, "kinds": [7, 2, 2]},
        {"table": TABLE, "kinds": [7, 2, -1]},
        {"table": TABLE, "kinds": [7, 2, 10]},
        {"table": TABLE, "kinds": [7.0, 2.0, 1.0]},
        {"table": TABLE, "kinds": [7, 2, 1], "others": [1, 2, 7]},
        {"table": TABLE, "other": TABLE[:8], "kinds": [7, 2, 1]},
        {"table": TABLE, "kinds": [[7], [2, 1], []]},
        {"kinds": [7, 2, 1]},
    ],
)
def test_what_lists_no_rows(held: dict[str, Any]) -> None:
    """Samples are told by their own places then."""
    assert indices(Held(3, **held)) == [0, 1, 2]


def test_data_sets_that_hold_a_table_together() -> None:
    """By the same object, of as many rows as their indices are of."""
    known = DataSets()
    sets = [
        Held(10, table=TABLE),
        Held(3, table=TABLE, rows_of=[1, 2, 3]),
        Held(10, table=list(TABLE)),
        Held(5, own=[*"abcde"], table=TABLE),
    ]
    first, listed, copied, shorter = (serve(known, data) for data in sets)
    assert (listed.count(first), copied.count(first), shorter.count(first)) == (3, 0, 0)
    assert serve(known, sets[0]).is_as(first)
    anew = DataSets()
    assert serve(anew, sets[3]).count(serve(anew, sets[0])) == 0
    assert not listed.is_as(first)
    assert not copied.is_as(first)
    del sets[0]
    other = serve(known, Held(10, table=TABLE))
    assert other.number != first.number
    assert other.family == listed.family
