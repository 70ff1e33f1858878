"""Pairs whose scores are pushed down, and up in other calls."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.drawn_negatives import DrawnNegatives


class Scores(nn.Module):
    """Score pairs of users and items, given in one of several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 4), nn.Embedding(30, 4)

    def score(self, user, item):
        """Return a score for each pair."""
        return (self.users(user) * self.items(item)).sum(-1)

    def forward(self, *sides):
        """Return the scores of pairs, of rows with a pair each, or of two items for each user."""
        if len(sides) == 1:
            return self.score(*sides[0].T)
        return (
            [self.score(sides[0], side) for side in sides[1:]] if sides[2:] else self.score(*sides)
        )


def pairs_in_order(epochs=4):
    """Yield batches of users and the two items that each of them likes, in another order."""
    likes = torch.tensor([(user, (7 * user + k) % 30) for user in range(20) for k in range(2)])
    for _ in range(epochs):
        yield from likes[torch.randperm(40)].split(20)


def pairs_at_random(epochs=4):
    """Yield batches of which some pairs come again at once."""
    likes = torch.tensor([(user, (7 * user + k) % 30) for user in range(20) for k in range(2)])
    for _ in range(2 * epochs):
        yield likes[torch.randint(0, 40, (20,))]


def drawn(share):
    """Return a function that draws four items for each user, a share of which are liked ones."""

    def draw(user):
        """Draw."""
        liked = 7 * user[:, None] + torch.randint(0, 2, (len(user), 4))
        others = 7 * user[:, None] + torch.randint(2, 30, (len(user), 4))
        return torch.where(torch.rand(others.shape) < share, liked, others) % 30

    return draw


def apart(net, user, item, other):
    """Score both in calls of their own."""
    return net(user, item)[:, None], net(user[:, None], other)


def flat(net, user, item, other):
    """Score users that are repeated."""
    return net(user, item)[:, None], net(user.repeat_interleave(4), other.reshape(-1)).view(-1, 4)


def rows(net, user, item, other):
    """Score rows with a pair each."""
    beside = torch.stack([user.repeat_interleave(4), other.reshape(-1)], 1)
    return net(torch.stack([user, item], 1))[:, None], net(beside).view(-1, 4)


def together(net, user, item, other):
    """Score both in one call."""
    scores, others = net(user[:, None], item[:, None], other)
    return scores, others


def in_one_call(net, user, item, other):
    """Score all of them in one call."""
    users, items = user.repeat_interleave(4), other.reshape(-1)
    scores = net(torch.cat([user, users]), torch.cat([item, items]))
    return scores[: len(user), None], scores[len(user) :].view(-1, 4)


def ranked(scores, others):
    """Return what is lost where others are above."""
    return F.softplus(others - scores).mean()


def hardest(scores, others):
    """Return what is lost by the highest of the others."""
    return F.softplus(others.max(1, keepdim=True).values - scores).mean()


def fitted(scores, others):
    """Return how far scores are from numbers of either side."""
    return (scores - 1).square().mean() + others.square().mean()


def looks(way=apart, *, share=0.5, loss_of=ranked, batches=pairs_in_order):
    """Train with scores of pairs; return what was seen, and whether anything was judged."""
    torch.manual_seed(0)
    net, draw = Scores(), drawn(share)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in batches():
            user, item = batch.T
            optimizer.zero_grad()
            loss_of(*way(net, user, item, draw(user))).backward()
            optimizer.step()
        watcher = recorder.watcher(DrawnNegatives)
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "drawn negatives"]
    return found, "drawn negatives" in watcher.looked


@pytest.mark.parametrize("way", [apart, flat, rows, together])
@pytest.mark.parametrize("loss_of", [ranked, hardest])
def test_what_is_liked_and_drawn(way, loss_of) -> None:
    """However the pairs are given."""
    (probe,), _ = looks(way, loss_of=loss_of, batches=lambda: pairs_in_order(16))
    assert 0.2 < probe.measured < 0.7
    assert probe.reference >= 256


def test_what_is_not_liked_is_judged() -> None:
    """Nothing that is drawn is a positive."""
    assert looks(share=0.0, batches=lambda: pairs_in_order(8)) == ([], True)


@pytest.mark.parametrize(
    "options",
    [
        {"batches": lambda: pairs_at_random(16)},
        {"batches": lambda: pairs_in_order(1)},
        {"loss_of": fitted, "batches": lambda: pairs_in_order(16)},
        {"way": in_one_call, "batches": lambda: pairs_in_order(16)},
    ],
    ids=["counts", "few", "fitted", "one call"],
)
def test_what_cannot_be_told(options) -> None:
    """Counts of what stands together, a few pairs, and scores that are pushed either way."""
    assert looks(**options) == ([], False)


@pytest.mark.parametrize(
    ("below", "epochs", "items", "found"),
    [
        (20, 16, 30, [(20, 30)]),
        (20, 2, 30, []),
        (18, 16, 30, []),
        (30, 16, 30, []),
        (20, 16, 20, []),
        (-20, 16, 30, []),
    ],
    ids=["users", "few", "popular", "all", "as many", "some"],
)
def test_a_range_of_something_else(below: int, epochs: int, items: int, found: list) -> None:
    """As many items as there are users, and all of these, often enough."""
    torch.manual_seed(0)
    net = Scores()
    net.items = nn.Embedding(items, 4)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in pairs_in_order(epochs):
            user, item = batch.T
            other = torch.randint(0, abs(below), (len(user), 4))
            other = other if below > 0 else other | 1  # the odd ones, the last one among them
            optimizer.zero_grad()
            ranked(*apart(net, user, item % items, other)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    seen = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "narrow negatives"]
    assert [(probe.measured, probe.reference) for probe in seen] == found
