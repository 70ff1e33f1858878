"""Parts of a batch: what of a loss is a sum over its samples, and what is a mean."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.batch_parts import BatchDivided, _tell_apart, cut
from trainguard.observe.loop.recorder import Recorder


@pytest.fixture(autouse=True)
def _nothing_else_is_asked(monkeypatch) -> None:
    """Spare the time of other questions."""
    monkeypatch.setattr(asking, "_questions", lambda _: [BatchDivided()])


def ask(measure, rows: int = 8) -> WhatIf | None:
    """Record steps with a loss, and return what a batch in parts says of it."""
    torch.manual_seed(0)
    points = torch.randn(64, 6)
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for inputs, target in DataLoader(TensorDataset(points, points.sum(1)), rows, shuffle=True):
            optimizer.zero_grad()
            measure(net(inputs)[:, 0], target).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return next((event for event in asked if event.question == "batch divided"), None)


@pytest.mark.parametrize(
    ("measure", "share"),
    [
        (lambda a, b: (a - b).square().mean() + a.abs().mean(), 0.0),
        (lambda a, b: (a - b).square().sum() + 0.1 * a.abs().sum(), 1.0),
        (lambda a, b: F.mse_loss(a, b) + 0.1 * (a + torch.randn_like(a)).abs().sum(), 0.5),
    ],
)
def test_a_loss_by_hand(measure, share) -> None:
    """It is a mean, a sum, or both, whatever noise and dropout there is."""
    answer = ask(measure)
    assert answer is not None
    assert answer.outcome == "answered", answer.reason
    assert answer.measured == share or 0 < answer.measured < 1 == 2 * share


@pytest.mark.parametrize(("reduction", "share"), [("mean", 0.0), ("sum", 0.5)])
def test_rows_that_an_order_draws(reduction, share) -> None:
    """Without a loader, the rows are cut where they are taken from tables."""
    torch.manual_seed(0)
    points = torch.randn(160, 6)
    wanted = points.sum(1)
    with Recorder("x") as recorder:
        net = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        order = torch.randperm(160)
        for begin in range(0, 160, 8):
            inputs, target = points[order[begin : begin + 8]], wanted[order[begin : begin + 8]]
            outputs = net(inputs)[:, 0]
            loss = F.l1_loss(outputs, target) + getattr(outputs.square(), reduction)()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    answer = next(event for event in asked if event.question == "batch divided")
    assert answer.measured == share or 0 < answer.measured < 1 == 2 * share


def test_what_cannot_be_divided() -> None:
    """A loss of one function is not asked about, and a root or other noise says nothing."""
    assert ask(F.mse_loss) is None
    assert ask(lambda a, b: 2 * F.mse_loss(a, b), rows=6) is None
    for measure, words in (
        (lambda a, b: F.mse_loss(a, b).sqrt(), "no sum over samples"),
        (lambda a, b: (a - b * torch.rand(len(b))).square().mean(), "random numbers"),
    ):
        answer = ask(measure)
        assert answer is not None
        assert (answer.outcome, words in answer.reason) == ("void", True)


def test_a_constant_is_neither() -> None:
    """A penalty of weights beside a sum has no samples: nothing of the loss is a mean."""
    sums = [8.0, 3.0, 5.0, 1.0, 2.0, 2.0, 3.0, 8.0]
    assert _tell_apart([each + 7 for each in sums], 1e-4).measured == 1.0
    means = [4.0, 3.0, 5.0, 2.0, 4.0, 4.0, 6.0, 4.0]
    assert _tell_apart(means, 1e-4).measured == 0.0
    both = [a + b for a, b in zip(sums, means, strict=True)]
    assert _tell_apart(both, 1e-4)[:3] == (8 / 12, 1.0, (4.0, 8.0))


def test_a_part_of_a_batch() -> None:
    """All that has a row for each sample is cut; anything else is refused."""
    words: list[str] = []
    rows = torch.arange(4)
    batch = {"x": rows, "more": [rows[:, None], ["a", "b", "c", "d"]]}
    part = cut(batch, slice(1, 3), 4, words.append)
    assert part["x"].tolist() == [1, 2]
    assert (part["more"][0].tolist(), part["more"][1]) == ([[1], [2]], ["b", "c"])
    cut([rows, torch.arange(5)], slice(1, 3), 4, words.append)
    assert words == ["a batch has more in it than a row for each sample"]
