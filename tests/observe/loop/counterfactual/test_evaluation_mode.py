"""The same step with the user's own modules in evaluation mode."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.asking import Counterfactuals
from trainguard.observe.loop.counterfactual.evaluation_mode import EvaluationMode
from trainguard.observe.loop.recorder import Recorder


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch) -> None:
    """Ask this question alone."""
    monkeypatch.setattr(asking, "_questions", lambda _: [EvaluationMode()])


class Part(nn.Module):
    """A part that does something of its own in each mode."""

    def __init__(self, act) -> None:
        super().__init__()
        self.act, self.scale, self.drop = act, 1.0, nn.Dropout(0.1)

    def forward(self, hidden):
        """Return as many numbers."""
        return self.act(self, hidden, self.training)


def ask(act, returns=lambda net, x: net(x), measures=F.mse_loss) -> list[WhatIf]:
    """Record a training that is measured after each epoch; return the answers about modes."""
    torch.manual_seed(0)
    points = torch.randn(40, 16, 6)
    sums = 3 + points.sum(2, keepdim=True)
    with Recorder("x") as recorder:
        recorder.watcher(Counterfactuals).wait()
        net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), Part(act), nn.Linear(64, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(2):
            for batch, target in zip(points, sums, strict=True):
                optimizer.zero_grad()
                F.mse_loss(returns(net, batch), target).backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                measures(net(points[0]), sums[0])
            net.train()
    assert recorder.trace.conditions.get("faults", ()) == ()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return [event for event in asked if event.question == "evaluation mode"]


def half_is_kept(part, hidden, training):
    """Strike half of the numbers, and make up for nothing."""
    return hidden * (torch.rand_like(hidden) > 0.5) if training else hidden


def only_while_it_trains(part, hidden, training):
    """Scale in one mode, beside a dropout of torch that strikes in both."""
    return part.drop(hidden * (1 if training else 8))


@pytest.mark.parametrize(("act", "seeds"), [(half_is_kept, 5), (only_while_it_trains, 2)])
def test_another_model(act, seeds) -> None:
    """The loss is far higher than from any seed, and the part is named."""
    (answer, *_) = ask(act)
    assert answer.outcome == "answered"
    assert answer.measured > 3 * answer.reference == 3 * max(answer.numbers)
    assert len(answer.numbers) == seeds
    assert answer.smallest == "`2` (Part)"
    assert answer.label == "modules that look at their mode: Part"


@pytest.mark.parametrize(
    "act",
    [
        lambda part, hidden, training: hidden,
        lambda part, hidden, training: F.dropout(hidden, 0.5, training),
        lambda part, hidden, training: hidden + training * torch.randn_like(hidden),
    ],
)
def test_the_same_model(act) -> None:
    """Noise that is made up for costs nothing in evaluation mode; one answer is enough."""
    (answer,) = ask(act)
    assert answer.outcome == "answered"
    assert answer.measured <= 2 * answer.reference


def follow(part, hidden, training):
    """Divide by what was seen lately, a number that is kept."""
    if training:
        part.scale = 0.9 * part.scale + 0.1 * float(hidden.detach().std())
        return hidden
    return hidden / part.scale * 9


def gate(part, hidden, training):
    """Draw soft gates in training, and shut all of them otherwise."""
    return hidden * (torch.rand_like(hidden) if training else 0)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (follow, "Part keeps numbers of what it has seen"),
        (gate, "other noise is drawn than dropout by hand"),
    ],
)
def test_it_is_void(act, why) -> None:
    """What keeps numbers, or draws other noise, may be another one on purpose."""
    assert {(answer.outcome, answer.reason) for answer in ask(act)} == {("void", why)}


def test_it_is_not_comparable() -> None:
    """Another loss function is used in evaluation mode."""
    (answer, *_) = ask(half_is_kept, measures=F.l1_loss)
    assert answer.reason == "its loss functions measure nothing in evaluation mode"


def test_a_mode_that_nobody_looks_at() -> None:
    """Models of torch's modules alone are not asked."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        recorder.watcher(Counterfactuals).wait()
        net = nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.5))
        optimizer = torch.optim.Adam(net.parameters())
        for batch in torch.randn(40, 16, 6):
            optimizer.zero_grad()
            F.mse_loss(net(batch), batch.sum(1, keepdim=True)).backward()
            optimizer.step()
            with torch.no_grad():
                F.mse_loss(net.eval()(batch), batch.sum(1, keepdim=True))
            net.train()
    assert "evaluation mode" not in {getattr(event, "question", "") for event in recorder.trace}
