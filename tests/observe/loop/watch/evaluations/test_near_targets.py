"""What an evaluation names, found beside its input where no loader and no loss tells."""

import pytest
import torch
from torch import nn

from trainguard.events.fit import Score
from trainguard.observe.loop.recorder import Recorder

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


def plain(model: nn.Module) -> None:
    """Name rows that stand beside their classes."""
    x, y = X[12:].clone(), Y[12:].clone()
    (model(x).argmax(1) == y).sum()


def batch(model: nn.Module) -> None:
    """Name rows of a dict."""
    for low in (12, 18):
        batch = {"x": X[low : low + 6].clone(), "y": Y[low : low + 6].clone()}
        named = model(batch["x"]).argmax(1)
        (named == batch["y"]).sum()


def table(model: nn.Module) -> None:
    """Name slices of a table, beside which stands that of the classes."""
    x, y = X, Y
    for low in (12, 18):
        (model(x[low : low + 6]).argmax(1) == y[low : low + 6]).sum()


def both(model: nn.Module) -> None:
    """Name slices of a table that stand beside theirs."""
    xs, ys = X, Y
    for low in (12, 18):
        x, y = xs[low : low + 6], ys[low : low + 6]
        named = model(x).argmax(1)
        (named == y).sum()


def ambiguous(model: nn.Module) -> None:
    """Name rows with two kinds of classes beside them."""
    x, y = X[12:].clone(), Y[12:].clone()
    other = 2 - y
    (model(x).argmax(1) == y + other).sum()


def measured(model: nn.Module) -> None:
    """Take a loss: what that is given is known for sure."""
    x, y = X[12:].clone(), Y[12:].clone()
    nn.functional.cross_entropy(model(x), y)


def scores(evaluate) -> list[Score]:
    """Train, evaluate after each step, and return what was counted of evaluations."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[:12]), Y[:12]).backward()
            optimizer.step()
            with torch.no_grad():
                evaluate(model)
    told = [event for event in recorder.trace if isinstance(event, Score) and event.evaluation]
    with torch.no_grad():
        right = int((model(X[12:]).argmax(1) == Y[12:]).sum())
    assert all(event.ways[0][:3] == ("right", right, 12) for event in told[-1:])
    return told


@pytest.mark.parametrize("evaluate", [plain, batch, table, both])
def test_classes_beside_an_input_are_found(evaluate) -> None:
    """They are the variable that fits, an entry of a batch, or the same rows of a table."""
    assert [event.source for event in scores(evaluate)] == ["of Linear"] * 3


def test_two_that_fit_are_left_alone() -> None:
    """It is not known which of them is meant."""
    assert scores(ambiguous) == []


def test_a_loss_knows_better() -> None:
    """Where evaluations have a loss, what it is given is counted alone."""
    assert all(event.source != "of Linear" for event in scores(measured))
