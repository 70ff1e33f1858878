"""Numbers of names in columns, that a script makes by itself."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Find = Callable[[Any, Any], Any]  # the names that a column is numbered by


def build(users: int = 40, others: int = 0) -> Any:
    """Return a table of users, some of which it does not have, and of groups of them."""
    draw = np.random.default_rng(users)
    names = np.array([f"user{n:02}" for n in draw.permutation(60)])
    names[:others] = [f"zero{n:02}" for n in range(others)]
    groups = draw.integers(0, 60, 4 * users)
    return SimpleNamespace(user=np.tile(names[:users], 4), group=groups)


def number(names: Any, table: Any) -> torch.Tensor:
    """Return the places of the users of a table in sorted names."""
    return torch.from_numpy(np.searchsorted(names, table.user))


def group(_: Any, table: Any) -> torch.Tensor:
    """Return what needs no number."""
    return torch.from_numpy(table.group.copy())


def run(
    find: Find, *, batch: int = 80, rows: int = 60, table: Any = None, encode: Any = number
) -> list[Probe]:
    """Train on one table and ask about another one, whose names are found by a function."""
    held, seen = table or build(40), build(60)
    names = np.unique(seen.user)
    inside, asked = encode(names, seen), encode(find(held, seen), held)
    model = nn.Embedding(rows, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(inside[torch.randperm(len(inside))[:32]]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for part in asked.split(batch)[-2:]:
                model(part)
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "numberings"]


def own(held: Any, _: Any) -> Any:
    """Return the names of the table itself."""
    return np.unique(held.user)


def shared(_: Any, seen: Any) -> Any:
    """Return the names of the table that is trained on."""
    return np.unique(seen.user)


@pytest.mark.parametrize("batch", [160, 80, 40])
def test_names_that_are_numbered_anew(batch: int) -> None:
    """Most of the names have another number, whether all is asked at once or in parts."""
    (probe,) = run(own, batch=batch)
    assert probe.reference == 40
    assert probe.measured > 30
    assert probe.label == ".user"
    assert "test_renumbered_rows.py" in probe.source


def test_a_table_that_fits_as_well() -> None:
    """The numbers of the evaluation reach as far, and are none to compare them with."""
    (probe,) = run(own, table=build(50), batch=200)
    assert probe.reference == 50


def test_names_that_have_one_number() -> None:
    """The same names for both."""
    assert run(shared) == []


def test_numbers_of_another_kind() -> None:
    """Those of an embedding that is larger by far, and columns of another object or few names."""
    assert run(own, rows=90) == []
    other = SimpleNamespace(user=build(40).user)
    assert run(own, table=other) == []
    assert run(own, table=build(7)) == []
    assert run(own, table=build(40, others=30)) == []  # of which a quarter are the same
    assert run(own, encode=group) == []


class Second(nn.Module):
    """Asks an embedding for the second column."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1)

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        """Return a number for each row."""
        return self.table(cells[:, 1])


def read(users: int, more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows as a file has them."""
    names = build(users).user.tolist()
    return [
        {"age": place % 7, "user": name, "kind": "a", **more} for place, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("alike", "more", "found"),
    [(False, {}, True), (True, {}, False), (False, {"other": "b"}, False)],
)
def test_rows_and_tables(alike: bool, more: dict[str, str], found: bool) -> None:
    """Rows that have a name for each column, and a table of numbers of such columns."""
    seen, held = read(60, {}), read(40, more)
    places = {name: n for n, name in enumerate(sorted({row["user"] for row in seen}))}
    own = {name: n for n, name in enumerate(sorted({row["user"] for row in held}))}
    inside = torch.tensor([[row["age"], places[row["user"]]] for row in seen])
    numbers = places if alike else own
    asked = torch.tensor([[row["age"], numbers[row["user"]]] for row in held])
    model = Second(60)
    unlike = [{place: "a"} for place in range(20)]
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(inside[torch.randperm(len(inside))[:32]]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            model(asked)
    assert len(unlike) == 20
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "numberings"]
    assert [probe.label for probe in probes] == [".user"] * found
