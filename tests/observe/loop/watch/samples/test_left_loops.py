"""Loops over batches that are left in their first round."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Batches = DataLoader[tuple[torch.Tensor, ...]]


def step(model: nn.Module, rows: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Make one step."""
    loss = F.mse_loss(model(rows), rows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def returns(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Return one level too deep."""
    total = 0.0
    for (rows,) in loader:
        total += step(model, rows, optimizer)
        return total / len(loader)
    return total


def breaks(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Break at the end of a body, as after a try."""
    total = 0.0
    for _, (rows,) in enumerate(loader):
        total += step(model, rows, optimizer)
        break
    return total


def goes_on(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Return behind the loop."""
    total = 0.0
    for (rows,) in loader:
        total += step(model, rows, optimizer)
    return total / len(loader)


def stops(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Break if it is enough."""
    total = 0.0
    for count, (rows,) in enumerate(loader):
        total += step(model, rows, optimizer)
        if count == 0:
            break
    return total


def skips(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Break after the first batch that fits."""
    for (rows,) in loader:
        if rows.sum() > 1e9:
            continue
        step(model, rows, optimizer)
        break
    return 0.0


def tries(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Break out of a loop that is none over batches."""
    for _ in range(3):
        step(model, next(iter(loader))[0], optimizer)
        break
    return 0.0


def one_step(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """Return after one batch."""
    for (rows,) in loader:
        return step(model, rows, optimizer)
    return 0.0


def looks(
    epoch: Callable[..., float], rows: int = 32, judged: bool = True
) -> list[tuple[float, float, int, str]]:
    """Train for some epochs, and return what was seen."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: Batches = DataLoader(TensorDataset(torch.randn(rows, 4)), 8)
    with Recorder("x") as recorder:
        for _ in range(3):
            epoch(model, loader, optimizer)
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert ("left loop" in str(recorder.trace.conditions["looked"])) is judged
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "left loop"]
    return [(probe.measured, probe.reference, probe.step, probe.label) for probe in found]


def test_a_return_is_told() -> None:
    """With the line, and how many batches there are."""
    assert looks(returns) == [(3, 4, 1, "return total / len(loader)")]


def test_a_break_is_told() -> None:
    """It may be meant."""
    assert looks(breaks) == [(3, 4, 0, "break")]


def test_a_return_where_nobody_speaks_of_epochs() -> None:
    """One batch of a loader may be all that somebody wants."""

    def take(model: nn.Module) -> list[tuple[float, int]]:
        """Make three steps, each with the first batch of an order of its own."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader: Batches = DataLoader(TensorDataset(torch.randn(32, 4)), 8, shuffle=True)
        with Recorder("x") as recorder:
            for _ in range(3):
                one_step(model, loader, optimizer)
        return [(e.measured, e.step) for e in recorder.trace if isinstance(e, Probe)]

    assert (3.0, 0) in take(nn.Linear(4, 4))


@pytest.mark.parametrize("epoch", [goes_on, stops, skips])
def test_other_loops_are_left_alone(epoch: Callable[..., float]) -> None:
    """Loops that go on, or that something may end."""
    assert looks(epoch) == []


def test_a_loop_over_something_else_is_not_judged() -> None:
    """Nobody says that it has passed."""
    assert looks(tries, judged=False) == []


loader = [torch.zeros(1)]  # beside what functions have in a variable of this name


def test_a_variable_of_the_function_comes_first() -> None:
    """A function's own loader hides another variable of the file."""
    assert looks(returns) == [(3, 4, 1, "return total / len(loader)")]


def test_one_batch_is_all() -> None:
    """A loader of one batch has no second round."""
    assert looks(returns, rows=8, judged=False) == []
