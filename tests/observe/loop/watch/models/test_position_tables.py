"""Tables of positions, and whether any two places get different numbers."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Places(nn.Module):
    """Adds what is chosen of a table to a sequence."""

    def __init__(self, choose, name: str = "pe", rows: int = 30, learned: bool = False) -> None:
        super().__init__()
        self.choose, self.name = choose, name
        table = torch.randn(1, rows, 8)
        if learned:
            self.register_parameter(name, nn.Parameter(table))
        else:
            self.register_buffer(name, table)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a sequence as long."""
        return self.dropout(x + self.choose(getattr(self, self.name), x))


def found(places: nn.Module) -> list[str]:
    """Learn a little, and return what gives all places the same numbers."""
    model = nn.Sequential(nn.Linear(8, 8), places, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 7, 8)).mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e.label for e in recorder.trace if isinstance(e, Probe) and e.probe == "one place"]


def choose_one(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the row behind the last place."""
    return table[:, x.shape[1], :]


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", ["pe", "pos_embedding", "positional_table"])
def test_one_row_for_all_is_found(name: str, learned: bool) -> None:
    """Whether it is learned or not, and in spite of dropout."""
    assert found(Places(choose_one, name, learned=learned)) == ["Places Sequential.1"]


@pytest.mark.parametrize(
    "places",
    [
        Places(lambda table, x: table[:, : x.shape[1]]),
        Places(lambda table, x: table[0, : x.shape[0], None]),  # the batch may come second
        Places(choose_one, "bias_table"),
        Places(lambda table, x: table[:, 0], rows=3),
        Places(lambda table, x: table[:, : x.shape[1]] * 0),
        Places(lambda table, x: table[:, : x.shape[1]].sum(-1, keepdim=True) + x.mean() / 0),
    ],
    ids=["each", "by sample", "no name", "few rows", "nothing", "nan"],
)
def test_other_tables_are_fine(places) -> None:
    """What differs, is no table of positions for certain, or adds nothing."""
    assert found(places) == []


class Codebook(nn.Module):
    """Returns the nearest entry of a table for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = nn.Parameter(torch.randn(30, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many entries; zeros have the same one everywhere."""
        near = torch.cdist(x, self.encoding.expand(len(x), -1, -1)).argmin(-1)
        return x + (self.encoding[near] - x).detach()


class Prototypes(nn.Module):
    """Attends to a table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pos", torch.randn(30, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same mixture for the same input, wherever it stands."""
        return (x @ self.pos.T).softmax(-1) @ self.pos


@pytest.mark.parametrize("part", [Codebook, Prototypes])
def test_a_table_that_is_chosen_from_is_none_of_positions(part) -> None:
    """Whatever it is called: what comes back depends on what is given."""
    assert found(part()) == []


def test_a_sequence_may_be_multiplied_first() -> None:
    """By a root of its width, as in the first of the kind."""

    class Scaled(Places):
        """Adds a row to what it has multiplied."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return a sequence as long."""
            return super().forward(x * 8**0.5)

    assert found(Scaled(choose_one)) == ["Scaled Sequential.1"]


class Moved(nn.Module):
    """Takes the place beside the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", torch.randn(30, 8))
        self.place = 0

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        """Return one step of a sequence."""
        return x + self.pe[place]


class Stepping(nn.Module):
    """Hands a place on."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = Moved()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a sequence of one place."""
        return self.moved(x, 3)


def test_what_takes_more_is_left_alone() -> None:
    """It cannot be asked."""
    assert found(Stepping()) == []
