"""Batches that no loader draws: what shows that their rows are samples, and what does not."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


class Blended(nn.Module):
    """Gives each sample a part of all others."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, rows):
        """Return scores."""
        return self.head(rows + rows.mean(0))


def record(train) -> list[WhatIf]:
    """Return what a training was asked about a sample."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "a sample edited"]


def learn(model, batches) -> None:
    """Train a model on pairs of an input and classes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, classes in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        optimizer.step()


POINTS = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))


def drawn_tensor() -> None:
    """Draw rows of a tensor in another order."""
    points, order = POINTS, torch.randperm(96)
    learn(Blended(), ((points[own], (points[own].sum(1) > 0).long()) for own in order.split(16)))


def drawn_array() -> None:
    """Draw rows of an array of numbers in double precision."""
    points, rng = POINTS.double().numpy(), np.random.default_rng(0)
    for model in [Blended()]:
        own = (torch.from_numpy(points[rng.permutation(96)[:16]]).float() for _ in range(6))
        learn(model, ((rows, (rows.sum(1) > 0).long()) for rows in own))


def in_order() -> None:
    """Go through a series, step by step."""
    points = POINTS
    learn(Blended(), ((own, (own.sum(1) > 0).long()) for own in points.split(16)))


def drawn_anew() -> None:
    """Draw numbers that are in no table."""
    own = (torch.randn(16, 6) for _ in range(6))
    learn(Blended(), ((rows, (rows.sum(1) > 0).long()) for rows in own))


@pytest.mark.parametrize(
    ("train", "outcome"),
    [(drawn_tensor, "answered"), (drawn_array, "answered"), (in_order, ""), (drawn_anew, "")],
)
def test_rows_of_a_table(train, outcome) -> None:
    """Rows are samples where they come from a larger table in no order."""
    found = record(train)
    assert {event.outcome for event in found} == ({outcome} if outcome else set())
    assert all(event.measured == event.reference == 15 for event in found)


class BlendedTables(Blended):
    """Flattens tables, and blends them."""

    def forward(self, tables):
        """Return scores."""
        return super().forward(tables.flatten(1))


def learn_tables(tables, *, apart: bool = True) -> None:
    """Train on tables of two by three, with a class each, or one for each row of theirs."""
    classes = lambda own: (own.sum((1, 2)) > 0).long()  # noqa: E731 named for what it is
    model = BlendedTables() if apart else nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for own in tables:
        optimizer.zero_grad()
        wanted = classes(own) if apart else classes(own).repeat_interleave(2)
        F.cross_entropy(model(own).reshape(len(wanted), 2), wanted).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("train", "outcome"),
    [
        (lambda: learn_tables(torch.randn(16, 2, 3) for _ in range(6)), "answered"),
        (lambda: learn_tables(torch.randn(16, 2, 3).cumsum(0) for _ in range(6)), ""),
    ],
    ids=["in no order", "one after the other"],
)
def test_tables_that_are_made_by_hand(train, outcome) -> None:
    """Rows that are tables, in no order and with a target each, are samples, but not for sure."""
    found = record(train)
    assert {event.outcome for event in found} == ({outcome} if outcome else set())
    told = {(event.measured, event.numbers[1:]) for event in found if event.outcome == "answered"}
    assert told == ({(15.0, (0.0, 0.0))} if outcome == "answered" else set())


def test_tables_with_several_targets_are_no_samples() -> None:
    """Each row of theirs may be one."""
    found = record(lambda: learn_tables((torch.randn(16, 2, 3) for _ in range(6)), apart=False))
    assert not [event for event in found if event.outcome == "answered"]


def padded(turned: bool, *, by_length: bool = False) -> torch.Tensor:
    """Return words of several lengths, padded at their ends; turned: time first."""
    lengths = torch.randint(2, 9, (12,))
    lengths = lengths.sort(descending=True).values if by_length else lengths
    words = torch.randint(1, 9, (12, 8)) * (torch.arange(8) < lengths[:, None])
    return words.T.contiguous() if turned else words


class Bag(nn.Module):
    """Encodes words; time: the axis along which they are gathered."""

    def __init__(self, time: int) -> None:
        super().__init__()
        self.words, self.time = nn.Embedding(9, 6), time

    def forward(self, words):
        """Return a code for each text."""
        return self.words(words).mean(self.time)


@pytest.mark.parametrize(
    ("turned", "by_length", "asked"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_padding_tells_the_axis_of_time(turned, by_length, asked) -> None:
    """Each text has padding at its end alone; by length, no axis can be told from the other."""

    def train() -> None:
        bag, head = Bag(0 if turned else 1), nn.Linear(6, 2)
        each = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (bag, head)]
        for _ in range(6):
            words = padded(turned, by_length=by_length)
            for optimizer in each:
                optimizer.zero_grad()
            classes = (words.sum(0 if turned else 1) > 18).long()
            F.cross_entropy(head(bag(words)), classes).backward()
            for optimizer in each:
                optimizer.step()

    answered = [event for event in record(train) if event.outcome == "answered"]
    assert {event.measured for event in answered} == ({0.0} if asked else set())


def test_networks_that_train_against_each_other() -> None:
    """A discriminator may compare the samples of a batch: it is no model of one."""

    def train() -> None:
        points, judge, maker = POINTS, Blended(), nn.Linear(3, 6)
        each = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (judge, maker)]
        for _ in range(6):
            rows, made = points[torch.randperm(96)[:16]], maker(torch.randn(16, 3))
            for optimizer in each:
                optimizer.zero_grad()
            right, wrong = torch.ones(16).long(), torch.zeros(16).long()
            loss = F.cross_entropy(judge(rows), right)
            (loss + F.cross_entropy(judge(made.detach()), wrong)).backward()
            each[0].step()
            F.cross_entropy(judge(made), right).backward()
            each[1].step()

    assert {event.outcome for event in record(train)} <= {"void"}
