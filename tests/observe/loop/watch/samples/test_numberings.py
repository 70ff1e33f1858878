"""The numbers that data sets give to names, and that a module looks up."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

NAMES = [f"n{place}" for place in range(40)]
OTHER = {name: number for number, name in enumerate(reversed(NAMES))}
SAME = {name: number for number, name in enumerate(NAMES)}


class Rows(Dataset[Any]):
    """Numbers of names, and a target; the table is kept below an attribute."""

    def __init__(self, table: Any, names: list[str] | None = None) -> None:
        self.tables = (table,)
        found = table if isinstance(table, dict) else dict(table)
        self.numbers = torch.tensor([found[name] for name in 4 * (names or list(found))])

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a number, and what is to be told from it."""
        return self.numbers[place], self.numbers[place].float()


class Look(nn.Module):
    """A row for each number."""

    def __init__(self, embeds: bool = True, rows: int = 64) -> None:
        super().__init__()
        self.row = nn.Embedding(rows, 1) if embeds else nn.Linear(1, 1)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the row of each number."""
        given = numbers if isinstance(self.row, nn.Embedding) else numbers.float()[:, None]
        return self.row(given).squeeze(-1)


def run(
    train: Any, val: Any, *, learns: bool = False, model: nn.Module | None = None
) -> list[Probe]:
    """Train on one data set and evaluate on another one, or learn from it too."""
    model = model or Look()
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for data in [train, val, train, val] if learns else [train, train]:
            for numbers, targets in DataLoader(data, 32, shuffle=True):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(numbers), targets).backward()
                optimizer.step()
        with torch.no_grad():
            for numbers, _ in DataLoader(val, 64):
                model(numbers)
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "numberings"]


def test_another_number_for_each_name() -> None:
    """Wherever in the data set the table is, and in part of the data."""
    (probe,) = run(Rows(SAME), Rows(OTHER))
    assert (probe.measured, probe.reference, probe.label) == (40.0, 40.0, ".tables[0]")
    assert "test_numberings.py" in probe.source
    for val in (Subset(Rows(OTHER), range(100)), Rows(OTHER)):
        (probe,) = run(Subset(Rows(SAME), range(100)), val)
        assert (probe.measured, probe.label) == (40.0, ".tables[0]")


def test_some_names() -> None:
    """What both have is compared; where that is little, they are of different things."""
    some = {name: number for number, name in enumerate(NAMES[10:])}
    (probe,) = run(Rows(SAME), Rows(some))
    assert (probe.measured, probe.reference) == (30.0, 30.0)
    others = [f"m{n}" for n in range(20)] + NAMES[:15]
    assert run(Rows(SAME), Rows({name: number for number, name in enumerate(others)})) == []


@pytest.mark.parametrize(
    "table",
    [
        SAME,
        dict(SAME),
        list(OTHER.items()),  # no table
        {name: float(number) for name, number in OTHER.items()},
        {name: OTHER[name] for name in NAMES[-7:]},  # few
    ],
)
def test_tables_that_say_the_same_or_nothing(table: Any) -> None:
    """The same numbers, and what is no table of names."""
    data = Rows(OTHER)
    data.tables = (table,)
    assert run(Rows(SAME), data) == []


def test_numbers_of_no_row() -> None:
    """Numbers with gaps may count something."""
    one, other = ({name: 3 * n % 101 for name, n in table.items()} for table in (SAME, OTHER))
    assert run(Rows(one), Rows(other), model=Look(rows=128)) == []


def test_small_numbers() -> None:
    """They may be of something else, with fewer names than the tables have."""
    few = {name: number for name, number in OTHER.items() if number < 16}
    data = Rows(few)
    data.tables = (OTHER,)
    assert run(Rows(SAME), data) == []
    assert run(Rows(SAME), Rows({name: n for n, name in enumerate(NAMES[::-1][:7])})) == []


def test_two_evaluations_that_disagree() -> None:
    """What is learned from has no such table: neither is right or wrong."""
    plain, data = Rows(SAME), Rows(OTHER)
    plain.tables = ()
    both = ConcatDataset([data, data])
    assert run(plain, both) == run(plain, data) == []


def test_numbers_that_nobody_looks_up() -> None:
    """A table beside, a module without embeddings, and data that are learned from too."""
    data = Rows(SAME, NAMES[:30])
    data.tables = ({name: number for number, name in enumerate(NAMES[30:] + NAMES[:12])},)
    assert run(Rows(SAME), data) == []
    assert run(Rows(SAME), Rows(OTHER), model=Look(embeds=False)) == []
    assert run(Rows(SAME), Rows(OTHER), learns=True) == []


def test_names_that_are_numbers() -> None:
    """They may be what is given; where others are given, the table is in use."""
    own, other = {n: n for n in range(40)}, {n: 39 - n for n in range(40)}
    assert run(Rows(own, list(own)), Rows(other, list(other))) == []  # type: ignore[arg-type]
    own, other = {100 + n: n for n in range(40)}, {100 + n: 39 - n for n in range(40)}
    (probe,) = run(Rows(own, list(own)), Rows(other, list(other)))  # type: ignore[arg-type]
    assert probe.measured == 40.0
