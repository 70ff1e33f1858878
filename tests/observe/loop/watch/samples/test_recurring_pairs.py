"""Rows that come again with another target, where not all batches of an epoch are seen."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.recurring_pairs import RecurringPairs

_ROWS, _BATCH, _EPOCHS = 4000, 40, 8  # a hundred batches of an epoch are more than are seen


def learn(target_of, inputs=None) -> list[Probe]:
    """Learn from rows in a new order in each epoch; return what is told of their labels."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(_ROWS, 5, generator=generator) if inputs is None else inputs
    labels = rows.sum(1) + torch.randn(_ROWS, generator=generator)
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(_EPOCHS):
            order = torch.randperm(_ROWS, generator=generator)
            for start in range(0, _ROWS, _BATCH):
                places = order[start : start + _BATCH]
                loss = F.mse_loss(model(rows[places]), target_of(labels, places, start))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "labels"]


def test_targets_that_are_taken_by_another_order() -> None:
    """The inputs are shuffled, and the targets are not."""
    (probe,) = learn(lambda labels, places, start: labels[start : start + _BATCH])
    assert probe.measured > 0.99
    assert probe.reference == pytest.approx(0.75, abs=0.01)
    assert probe.label.endswith("rows that came again")


@pytest.mark.parametrize(
    "target_of",
    [
        lambda labels, places, start: labels[places],
        lambda labels, places, start: labels[places] + torch.randn(len(places)),
        lambda labels, places, start: labels[start : start + _BATCH].sign(),
    ],
    ids=["their own", "never again", "two classes"],
)
def test_targets_that_may_be_their_own(target_of) -> None:
    """Returns never come again, and of few classes each has many rows."""
    assert learn(target_of) == []


def test_rows_of_a_few_kinds() -> None:
    """Each of them has many targets."""
    kinds = torch.randn(20, 5).repeat(_ROWS // 20, 1)
    assert learn(lambda labels, places, start: labels[places], kinds) == []


def test_what_has_not_come_again() -> None:
    """A few rows are not enough to be judged."""
    pairs = RecurringPairs()
    rows = np.arange(200, dtype=np.uint64)
    for shift in range(4):
        pairs.add(rows, np.roll(rows, shift))
    assert pairs.judge() is None


@pytest.mark.parametrize(("again", "new"), [(300, False), (400, True)])
def test_what_seldom_comes_again(again: int, new: bool) -> None:
    """Few rows and targets do; or the rows do, and their targets never."""
    pairs = RecurringPairs()
    rows = np.arange(1000, dtype=np.uint64)
    pairs.add(rows, rows)
    other = rows + np.uint64(1000) if new else np.roll(rows, 1)
    pairs.add(rows[:again], other[:again])
    assert pairs.judge() is None
    for shift in range(2, 5):
        pairs.add(rows, np.roll(rows, shift))
    assert pairs.judge() is not None
