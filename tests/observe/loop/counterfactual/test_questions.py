"""What is edited, and when an edit says nothing."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual.drawn_edits import find_smallest
from trainguard.observe.loop.counterfactual.question import Contrast, Shrinking
from trainguard.observe.loop.counterfactual.replay import BatchAgain
from trainguard.observe.loop.recorder import Recorder


class Reader(nn.Module):
    """Classifies padded texts by a mean of their words; `looks` is what it does with the ids."""

    def __init__(self, looks=lambda ids, mask: mask, module=None) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)
        self.looks, self.module = looks, module

    def forward(self, ids, mask):
        """Return the scores."""
        kept = self.looks(ids, mask).float().unsqueeze(-1)
        return self.head((self.words(ids) * kept).sum(1) / kept.sum(1))


def texts(lengths, right=True):
    """Return texts padded with 0, their masks and classes."""
    place = torch.arange(8)
    mask = place < lengths[:, None] if right else place >= 8 - lengths[:, None]
    ids = torch.randint(1, 20, (64, 8)) * mask
    return ids, mask, ids.sum(1) % 2


def read(make, *, lengths=None, flip=False, right=True, thorough=False, **options) -> list[WhatIf]:
    """Record the training of a reader, and return what it was asked about padding."""
    torch.manual_seed(0)
    lengths = torch.randint(3, 8, (64,)) if lengths is None else lengths
    with Recorder("x", thorough=thorough) as recorder:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for ids, mask, classes in DataLoader(TensorDataset(*texts(lengths, right)), 16):
            optimizer.zero_grad()
            given = mask if not flip else ~mask
            F.cross_entropy(model(ids, given.to(**options)), classes).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "padding edited"]


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_padding_that_does_not_matter(right, dtype) -> None:
    """On either side, by a mask of any dtype."""
    (event,) = read(Reader, right=right, dtype=dtype)
    assert (event.outcome, event.measured, event.reference > 0) == ("answered", 0.0, True)
    assert event.label.endswith("tokens, marked as padding")


@pytest.mark.parametrize(
    ("looks", "flip"),
    [(lambda ids, mask: mask, True), (lambda ids, mask: torch.ones_like(ids), False)],
)
def test_padding_that_matters(looks, flip) -> None:
    """A mask upside down, and a mean over all positions."""
    (event,) = read(lambda: Reader(looks), flip=flip)
    assert event.outcome == "answered"
    assert event.measured > event.reference
    assert re.match(
        r"with token \[\d+, \d\], marked as padding, \d+ instead of 0, the loss is", event.smallest
    )


def test_one_token_of_many_is_found() -> None:
    """Halves are edited, as long as one of them changes the loss: here only the last place does."""
    last = torch.arange(8) == 7
    (event,) = read(lambda: Reader(lambda _, mask: mask | last), lengths=torch.arange(64) % 3 + 4)
    assert re.match(r"with token \[\d+, 7\], marked as padding, \d+ instead of 0", event.smallest)


def test_how_an_edit_is_made_smaller() -> None:
    """The first place alone, then halves of halves; where no half is enough, what was enough is."""

    def asked(needed) -> tuple[list[list[int]], str]:
        """Return what is edited, where a relation breaks with certain places, and what is told."""
        question, tried = Shrinking(), []
        for part in question.shrink(9, list):
            tried.append(part)
            if needed <= {*part}:
                question.shows(str(part))
        return tried, question.conclude(Contrast(smallest="all")).smallest

    assert asked({0}) == ([[0]], "[0]")
    halves = [[0], [0, 1, 2, 3], [4, 5, 6, 7, 8], [4, 5], [6, 7, 8], [6], [7, 8], [7]]
    assert asked({7}) == (halves, "[7]")
    assert asked({5, 8}) == ([*halves[:3], [4, 5], [6, 7, 8]], "[4, 5, 6, 7, 8]")
    assert asked({0, 8}) == (halves[:3], "all")


@pytest.mark.parametrize(
    "looks", [lambda ids, mask: ids != 0, lambda ids, mask: ids.view(16, -1).clone() > 0]
)
def test_a_step_that_looks_for_itself(looks) -> None:
    """Where the step finds padding by the tokens, other tokens there are no padding."""
    (event,) = read(lambda: Reader(looks))
    assert event.outcome == "void"
    assert event.reason.startswith("the step itself looks at the tokens")


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": torch.full((64,), 8)},
        {"lengths": torch.full((64,), 5)},
        {"make": lambda: Reader(module=nn.LSTM(8, 8))},
        {"make": lambda: Reader(module=nn.Conv1d(8, 8, 3))},
        {"make": lambda: Reader(module=nn.BatchNorm1d(8))},
    ],
)
def test_what_is_not_asked(options) -> None:
    """No padding, padding that may be anything, and models that look around themselves."""
    assert read(**{"make": Reader, **options}) == []


def cross_entropy(scores, classes) -> torch.Tensor:
    """Return the loss, by the name that the recorder has put something in the place of."""
    return F.cross_entropy(scores, classes)


def repeat(
    change=lambda parameters: None,
    loss_of=cross_entropy,
    **options,
) -> list[WhatIf]:
    """Record a training whose gradients are changed, and return what became of one batch."""
    torch.manual_seed(0)
    points = torch.randn(128, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    with Recorder("x") as recorder:
        for inputs, classes in DataLoader(TensorDataset(points, (points[:, 0] > 0).long()), 16):
            optimizer.zero_grad()
            loss_of(model(inputs), classes).backward()
            change(model.parameters())
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "the same batch again"]


def negate(parameters) -> None:
    """Turn the gradients round."""
    for parameter in parameters:
        parameter.grad.neg_()


def test_steps_that_are_too_long() -> None:
    """At a hundredth of the rate the same steps help."""
    torch.manual_seed(0)
    points = torch.randn(128, 6)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    with Recorder("x") as recorder:
        for inputs, targets in DataLoader(TensorDataset(points, points[:, :1]), 16):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    found = [event for event in asked if event.question == "the same batch again"]
    assert found
    assert {(event.measured, event.enters) for event in found} == {(8.0, "rate")}


def test_what_a_hundredth_of_the_rate_tells() -> None:
    """Nothing where it makes some steps better and some worse, or gives no answer."""
    contrast = Contrast(8.0, 8.0)
    for rises, fault in ((8, "sign"), (0, "rate"), (3, None)):
        losses = [[0.0], *([float(min(n, rises) - max(n - rises, 0))] for n in range(9))]
        report = {"losses": losses, "values": losses}
        refined = BatchAgain(0.01).refine(contrast, "", {}, report)
        assert (refined.enters if refined else None) == fault
    several = {"losses": [[0.0], [1.0, 2.0]], "values": [[0.0], [1.0]]}
    assert BatchAgain(0.01).refine(contrast, "", {}, several) is None
    assert BatchAgain().follow_ups(Contrast(7.0, 8.0)) == []
    assert BatchAgain().follow_ups(Contrast(void="a reason")) == []


def test_steps_that_help() -> None:
    """One answer with a lower loss is enough, whatever dropout draws."""
    (event,) = repeat()
    assert (event.outcome, event.measured, event.reference) == ("answered", 0.0, 8.0)
    assert list(event.numbers) == sorted(event.numbers, reverse=True)


def test_steps_that_harm() -> None:
    """Asked three times, early and later, where there is time for it."""
    events = repeat(negate)
    assert [event.step for event in events] == [1, 2, 5]
    assert {event.enters for event in events} == {"sign"}
    assert {(event.measured, event.reference) for event in events} == {(8.0, 8.0)}


def test_what_goes_up_by_intention() -> None:
    """A maximising optimizer is not asked; the negative of a loss may fall."""
    assert repeat(maximize=True) == []
    (event,) = repeat(loss_of=lambda scores, classes: -F.cross_entropy(scores, classes))
    assert event.measured == 0


def test_a_loss_by_hand_is_void() -> None:
    """Where no loss function of torch was called, nobody knows which way it should go."""
    events = repeat(loss_of=lambda scores, classes: scores.square().mean())
    assert {event.outcome for event in events} == {"void"}


def test_ids_keep_to_their_columns() -> None:
    """Where each column of ids has a range of its own, rows change places and nothing fails."""
    torch.manual_seed(0)
    ids = torch.stack([torch.randint(50, (64,)), torch.randint(3, (64,))], 1)
    users, items = nn.Embedding(50, 4), nn.Embedding(3, 4)

    class Factors(nn.Module):
        """A factorisation of users and items."""

        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = users, items

        def forward(self, pairs):
            """Return the ratings."""
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)

    with Recorder("x") as recorder:
        model = Factors()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for pairs, ratings in DataLoader(TensorDataset(ids, torch.rand(64)), 16):
            optimizer.zero_grad()
            F.mse_loss(model(pairs), ratings).backward()
            optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    (answer,) = (event for event in asked if event.question == "inputs edited")
    assert (answer.outcome, answer.measured > 0) == ("answered", True)


def test_edits_that_are_drawn() -> None:
    """Hypothesis finds the one place that matters, and the first value there that does."""
    asked = []

    def breaks(edit) -> bool:
        """Say whether an edit breaks a relation that one place of 60 keeps, for half of values."""
        asked.append(edit)
        return edit.get(7, 0) > 3

    assert find_smallest(60, 8, breaks) == {7: 4}
    assert len(asked) <= 120
    asked.clear()
    assert find_smallest(60, 8, lambda edit: asked.append(edit) or False) is None
    assert 10 <= len(asked) <= 24
    assert len({str(edit) for edit in asked}) == len(asked)
    assert find_smallest(1, 1, lambda edit: True) == {0: 0}


def test_a_thorough_run_draws_edits() -> None:
    """One token is told, by the smallest number that changes the loss; where none does, nothing."""
    (event,) = read(lambda: Reader(lambda ids, mask: torch.ones_like(ids)), thorough=True)
    assert re.match(r"with token \[0, \d\], marked as padding, 1 instead of 0, the", event.smallest)
    assert event.enters.startswith("`Reader`")
    (event,) = read(Reader, thorough=True)
    assert (event.outcome, event.measured, event.smallest) == ("answered", 0.0, "")
