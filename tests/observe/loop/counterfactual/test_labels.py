"""Labels exchanged: whether it matters what belongs to whom."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


def ask(loss_of, *, shown=lambda model, inputs, labels: model(inputs)) -> list[WhatIf]:
    """Record a training, and return what it was asked about its labels."""
    torch.manual_seed(0)
    points = torch.randn(64, 6)
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in DataLoader(TensorDataset(points, points.sum(1)), 16, shuffle=True):
            optimizer.zero_grad()
            loss_of(shown(model, inputs, labels), labels).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "labels exchanged"]


def pinball(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of a quantile."""
    error = labels - scores
    return torch.maximum(0.9 * error, -0.1 * error).mean()


def test_labels_that_belong_to_samples() -> None:
    """One answer settles it."""
    (event,) = ask(lambda scores, labels: F.mse_loss(scores[:, 0], labels))
    assert (event.outcome, event.measured, event.step) == ("answered", 1.0, 1)
    assert event.label == "16 labels, each to the next sample"


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda scores, labels: (scores - labels).square().mean(),
        lambda scores, labels: (scores - labels).abs().mean(),
        lambda scores, labels: F.mse_loss(scores.mean(), labels.mean()),
    ],
)
def test_labels_that_belong_to_nobody(loss_of) -> None:
    """A table of all pairs, and means of both."""
    events = ask(loss_of)
    assert [(event.step, event.outcome, event.measured) for event in events] == [
        (1, "answered", 0.0),
        (2, "answered", 0.0),
    ]
    assert events[0].smallest.startswith("with the first label replaced by another one the loss is")


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda scores, labels: F.l1_loss(scores[:, 0], labels + 100),
        lambda scores, labels: F.huber_loss(scores[:, 0], labels + 100),
        lambda scores, labels: F.smooth_l1_loss(scores[:, 0], labels + 100),
        lambda scores, labels: (scores[:, 0] - labels - 100).abs().mean(),
        lambda scores, labels: F.l1_loss(scores, labels + 100),
        lambda scores, labels: F.l1_loss(scores.mean(), labels.mean()),
        lambda scores, labels: pinball(scores[:, 0], labels + 100),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_labels_that_are_all_far_off_say_nothing(loss_of) -> None:
    """An absolute error pulls each output alike: another order has the same loss."""
    assert {event.outcome for event in ask(loss_of)} == {"void"}


def test_labels_without_use_say_nothing() -> None:
    """What learns without labels depends on none of them."""
    events = ask(lambda scores, labels: scores.square().mean())
    assert {(e.outcome, e.reason) for e in events} == {("void", "the step depends on none of them")}


def test_labels_that_a_module_is_given_are_inputs() -> None:
    """A second call of the model may be about the other half of a pair."""
    twice = {"shown": lambda model, x, y: model(x) + model(y[:, None].expand(16, 6))}
    events = ask(lambda scores, labels: scores.mean() - labels.mean(), **twice)
    assert {event.reason for event in events} == {"a module is given what would be exchanged"}
