"""A document edited: whether others in its row change, and what tells documents apart."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.documents import (
    DocumentEdited,
    _blocks_of,
    _restarts_of,
)
from trainguard.observe.loop.recorder import Recorder

NUMBERS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2]).expand(4, 10)
PLACES = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1, 2]).expand(4, 10)
FOREIGN = NUMBERS[:, :, None] != NUMBERS[:, None]


@pytest.fixture(autouse=True)
def _nothing_else_is_asked(monkeypatch) -> None:
    """Spare the time of other questions."""
    monkeypatch.setattr(asking, "_questions", lambda _: [DocumentEdited()])


class Reader(nn.Module):
    """Attention by hand, under a mask or under none."""

    def __init__(self, uses) -> None:
        super().__init__()
        self.embed, self.head, self.uses = nn.Embedding(12, 8), nn.Linear(8, 12), uses

    def forward(self, tokens, other):
        """Return a loss and scores, as published models do."""
        hidden = self.embed(tokens)
        mask = self.uses(other)
        scores = self.head(F.scaled_dot_product_attention(hidden, hidden, hidden, mask))
        return F.cross_entropy(scores.flatten(0, 1), tokens.flatten()), scores


def ask(uses, other) -> WhatIf | None:
    """Record two steps, and return what a document that is edited says."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = Reader(uses)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            loss, _ = net(torch.randint(0, 12, (4, 10)), other.clone())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return next((event for event in asked if event.question == "a document edited"), None)


@pytest.mark.parametrize(
    ("uses", "other", "told"),
    [
        (lambda mask: ~mask, FOREIGN, (0.0, 24.0, (1.0,))),
        (lambda mask: None, FOREIGN, (24.0, 24.0, (1.0,))),
        (lambda mask: None, PLACES, (24.0, 24.0, (0.0,))),
    ],
)
def test_documents(uses, other, told) -> None:
    """A mask that is used keeps them apart, one that is not does not, and nor do positions."""
    answer = ask(uses, other)
    assert answer is not None
    assert (answer.measured, answer.reference, answer.numbers) == told


def test_what_tells_documents() -> None:
    """Masks of blocks of either kind do, and positions that begin anew."""
    lowest = torch.zeros(4, 1, 10, 10).masked_fill(FOREIGN[:, None], float("-inf"))
    later = torch.ones(10, 10, dtype=torch.bool).triu(1)
    for mask in (FOREIGN, ~FOREIGN, FOREIGN[0], FOREIGN | later, lowest):
        numbers = _blocks_of(mask, 4, 10)
        assert numbers is not None
        assert torch.equal(numbers, NUMBERS)
    numbers = _restarts_of(PLACES)
    assert numbers is not None
    assert torch.equal(numbers, NUMBERS)


def test_what_tells_none() -> None:
    """Windows, causal masks, tables of bonds, padding, marks and plain positions do not."""
    place = torch.arange(10)
    window = (place[:, None] - place).abs() < 3
    padding = (place < 7).expand(4, 10, 10)
    for mask in (window, window.triu(), place[:, None] >= place, (~FOREIGN).float(), padding):
        assert _blocks_of(mask, 4, 10) is None
    for table in (place.expand(4, 10), NUMBERS, (place % 2).expand(4, 10), torch.zeros(4, 10)):
        assert _restarts_of(table) is None
