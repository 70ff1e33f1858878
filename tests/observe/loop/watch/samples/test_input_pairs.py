"""Two inputs of one model, whose rows come again in other pairs."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ROWS, SIZE = 320, 32


class Two(nn.Module):
    """Adds up what it makes of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.one(first) + self.other(second)


def learn(order_of, *, epochs: int = 4) -> tuple[list[Probe], bool]:
    """Learn classes; order_of: the rows of both inputs, by the order of an epoch."""
    torch.manual_seed(0)
    first, second = torch.randn(ROWS, 4), torch.randn(ROWS, 5)
    labels, model = torch.randint(3, (ROWS,)), Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(epochs):
            own, other = order_of(torch.randperm(ROWS))
            for rows, partners in zip(own.split(SIZE), other.split(SIZE), strict=True):
                loss = nn.functional.cross_entropy(
                    model(first[rows], second[partners]), labels[rows]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "partners"]
    return found, "partners" in recorder.trace.conditions["looked"]


@pytest.mark.parametrize(
    ("order_of", "stays"),
    [
        (lambda order: (order, torch.arange(ROWS)), 1),
        (lambda order: (torch.arange(ROWS), order), 1),
        (lambda order: (order, torch.randperm(ROWS)), 0),
    ],
)
def test_inputs_in_other_pairs(order_of, stays: int) -> None:
    """Of one side that comes in its order it is certain."""
    (probe,), _ = learn(order_of)
    assert (probe.measured, probe.step, probe.label) == (ROWS, stays, "input 1 of Two")


@pytest.mark.parametrize(
    "order_of",
    [lambda order: (order, order), lambda order: (torch.arange(ROWS), torch.arange(ROWS))],
)
def test_pairs_that_stay(order_of) -> None:
    """Shuffled or not."""
    assert learn(order_of) == ([], True)


def test_rows_that_meet_several_partners_in_an_epoch() -> None:
    """As people and what they have seen, each of which comes several times."""

    def drawn(order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows that may be drawn again soon."""
        return order % 300, torch.randint(300, (ROWS,))

    assert learn(drawn, epochs=6) == ([], False)
