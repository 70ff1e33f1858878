"""What an evaluation names, found beside its input where no loader and no loss tells."""

import pytest
import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.fit import Metrics, Score
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.evaluations.near_targets import NearTargets, fit_numbers

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


def record(evaluate, loss, targets: torch.Tensor, outputs: int) -> tuple[nn.Module, list[Event]]:
    """Train on the first rows, evaluate after each step, and return the model and all events."""
    torch.manual_seed(0)
    model = nn.Linear(4, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            loss(model(X[:12]), targets[:12]).backward()
            optimizer.step()
            with torch.no_grad():
                evaluate(model)
    return model, list(recorder.trace)


def scores(evaluate) -> list[Score]:
    """Return what was counted of evaluations that name classes."""
    model, events = record(evaluate, nn.functional.cross_entropy, Y, 3)
    told = [event for event in events if isinstance(event, Score) and event.evaluation]
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


def test_what_a_model_is_given_is_no_target() -> None:
    """A second input has the size of the output as well."""
    x, times, y = X.clone(), X[:, :1] + 3, X[:, 1:2] - 3
    found = NearTargets().find("Net", (x, times), x[:, :1] + 1, fit_numbers)
    assert found is not None
    assert found[1] is y


NUMBERS = 2 * X[:, :1] - 1


def rows_beside(model: nn.Module) -> None:
    """Measure slices of a table of numbers, with weights of other sizes beside them."""
    x, y, weights = X, NUMBERS[:, 0], torch.ones(3)
    for low in (12, 18):
        apart = model(x[low : low + 6])[:, 0] - y[low : low + 6]
        (weights.sum() * apart).square().mean()


def batches_beside(model: nn.Module) -> None:
    """Measure rows beside their numbers, which are no view of a table."""
    for low in (12, 18):
        x, y = X[low : low + 6].clone(), NUMBERS[low : low + 6].clone()
        found = model(x)
        (found - y).square().mean()


def several_beside(model: nn.Module) -> None:
    """Measure rows with other numbers of the same size beside them."""
    x, y = X[12:].clone(), NUMBERS[12:].clone()
    other = y + 1
    (model(x) - y - other).square().mean()


@pytest.mark.parametrize(
    ("evaluate", "count"), [(rows_beside, 3), (batches_beside, 3), (several_beside, 0)]
)
def test_numbers_beside_an_input_are_found(evaluate, count: int) -> None:
    """The metrics are those of all of them, unless several fit."""
    model, events = record(evaluate, nn.functional.mse_loss, NUMBERS, 1)
    found = [event for event in events if isinstance(event, Metrics)]
    assert len(found) == count
    with torch.no_grad():
        error = (model(X[12:]) - NUMBERS[12:]).square().mean().sqrt().item()
    for event in found[-1:]:
        assert event.batches == 2
        assert ("rmse", "true", pytest.approx(error, rel=1e-5)) in event.values
