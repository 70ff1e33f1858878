"""The batch in another order: where the place of a sample matters, and when nobody can tell."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual.order import reorder
from trainguard.observe.loop.recorder import Recorder

ROWS = 16


class Net(nn.Module):
    """Scores points; `along` is what it adds to each place of the batch."""

    def __init__(self, along=0.0, middle=None) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, 8), middle or nn.Tanh(), nn.Linear(8, 2)
        self.along = along

    def forward(self, points):
        """Return the scores."""
        places = torch.linspace(-1, 1, 40)[: len(points), None]
        return self.last(self.middle(self.first(points.flatten(1)) + self.along * places))


def plain(model, points, classes):
    """Return the loss of a model."""
    return F.cross_entropy(model(points), classes)


def ask(loss_of=plain, model=None, *, shuffle=True) -> list[WhatIf]:
    """Record a training, and return what it was asked about the order."""
    torch.manual_seed(0)
    points = torch.randn(64, 4, 3)
    data = TensorDataset(points, (points.sum((1, 2)) > 0).long())
    with Recorder("x") as recorder:
        net = model or Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for points, classes in DataLoader(data, ROWS, shuffle=shuffle):
            optimizer.zero_grad()
            loss = loss_of(net, points, classes)
            loss.backward()
            optimizer.step()
    return asked(recorder)


def asked(recorder) -> list[WhatIf]:
    """Return what a recording was asked about the order."""
    events = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in events if event.question == "batch in another order"]


@pytest.mark.parametrize("rows", [4, 5, 16, 33])
def test_the_other_order(rows) -> None:
    """Each sample is there once, and all but one move."""
    order = reorder(rows)
    assert sorted(order.tolist()) == list(range(rows))
    assert int((order != torch.arange(rows)).sum()) >= rows - 1


def one_hot(model, points, classes):
    """Prepare the targets before the model is called."""
    rows = F.one_hot(classes, 2).float()
    return F.binary_cross_entropy_with_logits(model(points), rows)


def in_a_dict(model, points, classes):
    """Hold the targets in a dictionary in a list, as numbers of another dtype."""
    batch = [{"classes": classes.to(torch.int32)}]
    return F.cross_entropy(model(points), batch[0]["classes"].long())


@pytest.mark.parametrize("loss_of", [plain, one_hot, in_a_dict])
@pytest.mark.parametrize("middle", [None, nn.Dropout(0.5)])
def test_places_that_do_not_matter(loss_of, middle) -> None:
    """One answer settles it, wherever the targets are, with dropout or without."""
    (event,) = ask(loss_of, Net(middle=middle))
    assert (event.outcome, event.measured, event.reference) == ("answered", 0.0, 15.0)
    assert event.label == "16 samples in another order"


@pytest.mark.parametrize("middle", [None, nn.Dropout(0.5)])
def test_places_that_matter(middle) -> None:
    """What is added along the batch, with dropout or without."""
    events = ask(model=Net(along=1.0, middle=middle))
    assert {(e.outcome, e.measured, e.reference) for e in events} == {("answered", 15.0, 15.0)}
    assert [event.step for event in events] == [1, 2]
    assert events[0].smallest == "what cross_entropy is given"


def noisy(model, points, classes):
    """Add noise to the scores."""
    scores = model(points)
    return F.cross_entropy(scores + torch.randn_like(scores), classes)


def counted(model, points, classes):
    """Take the targets from a place that nobody can see."""
    (hidden := Hidden()).classes = classes.clone()
    return F.cross_entropy(model(points), hidden.read())


class Hidden:
    """Keeps classes where no variable leads to."""

    __slots__ = ("classes",)

    def read(self):
        """Return them."""
        return self.classes


def constant(model, points, classes):
    """Learn a constant, so that no target tells where its sample went."""
    return F.mse_loss(model(points), torch.ones(len(points), 2))


@pytest.mark.parametrize(
    ("loss_of", "reason"),
    [
        (noisy, "random numbers are drawn between the model and the loss"),
        (counted, "a target does not move with its sample"),
        (constant, "no loss function is given what belongs to a sample"),
    ],
)
def test_when_the_order_says_nothing(loss_of, reason) -> None:
    """Noise, targets that stay where they are, and targets that are all alike."""
    events = ask(loss_of, Net(along=1.0))
    assert {(event.outcome, event.reason) for event in events} == {("void", reason)}


def listed(model, points, classes):
    """Keep numbers of samples in a list."""
    ends = [float(one) for one in classes]
    return F.cross_entropy(model(points) * torch.tensor(ends)[:, None], classes)


class Stateful(Net):
    """Keeps something for each sample of a batch."""

    def __init__(self) -> None:
        super().__init__(along=1.0)
        self.state = torch.zeros(1, ROWS, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"loss_of": listed},
        {"model": Stateful()},
        {"model": Net(middle=nn.BatchNorm1d(8))},
        {"model": Net(along=1.0), "shuffle": False},
    ],
)
def test_what_is_not_asked(options) -> None:
    """Lists, states, batches that are normalised, and what is served in order."""
    assert ask(**options) == []


class Text(nn.Module):
    """Predicts the next token; `over_batch`: its recurrence and its places run along the batch."""

    def __init__(self, over_batch) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.over_batch = over_batch

    def forward(self, tokens):
        """Return the scores."""
        places = torch.linspace(-1, 1, 40)[: tokens.shape[not self.over_batch]]
        hidden = self.words(tokens)
        return self.head(hidden + (places[:, None, None] if self.over_batch else places[:, None]))


@pytest.mark.parametrize("over_batch", [False, True])
def test_texts_without_a_loader(over_batch) -> None:
    """Where targets are the next tokens, the other axis is that of the samples."""
    torch.manual_seed(0)
    text = torch.randint(20, (500,))
    with Recorder("x") as recorder:
        model = Text(over_batch)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            starts = torch.randint(480, (6, 1))
            tokens = text[starts + torch.arange(10)]
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert {event.measured > 0 for event in asked(recorder)} == {over_batch}


def test_segments_of_one_text_are_not_asked() -> None:
    """Rows that go on with the row before may have a memory of it."""
    torch.manual_seed(0)
    text = torch.randint(20, (61,))
    with Recorder("x") as recorder:
        model = Text(over_batch=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            scores = model(text[:-1].view(6, 10))
            loss = F.cross_entropy(scores.flatten(0, 1), text[1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert asked(recorder) == []
