"""Samples of a batch that mix."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.mixing_probe import _same


class Net(nn.Module):
    """A classifier of short sequences (N, 5, 6), with something in the middle."""

    def __init__(self, middle, *, batch_first: bool = True, statistics: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.memory = nn.LSTM(6, 8, batch_first=batch_first)
        self.norm = nn.BatchNorm1d(8, track_running_stats=statistics)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.middle = middle

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.last(self.middle(self, inputs))


def features(net: Net, inputs: torch.Tensor) -> torch.Tensor:
    """Return the mean features of each sequence."""
    return torch.relu(net.first(inputs.mean(1)))


def viewed(net: Net, inputs: torch.Tensor) -> torch.Tensor:
    """Swap two dimensions with a view, which tears the samples apart."""
    length, count = inputs.shape[1], inputs.shape[0]
    return net.first(inputs.view(length, count, 6)).mean(0)


MIXED = {
    "time first": (lambda net, x: net.memory(x)[0][:, -1], {"batch_first": False}),
    "softmax": (lambda net, x: features(net, x).softmax(0), {}),
    "mean": (lambda net, x: features(net, x) - features(net, x).mean(0), {}),
    "attention": (lambda net, x: net.layer(net.first(x))[:, 0], {"batch_first": False}),
    "view": (viewed, {}),
}
SOUND = {
    "plain": (features, {}),
    "batch first": (lambda net, x: net.memory(x)[0][:, -1], {}),
    "attention": (lambda net, x: net.layer(net.first(x))[:, 0], {}),
    "batch norm": (lambda net, x: net.norm(features(net, x)), {}),
    "no statistics": (lambda net, x: net.norm(features(net, x)), {"statistics": False}),
    "softmax": (lambda net, x: features(net, x).softmax(1), {}),
    "noise": (lambda net, x: features(net, x) + torch.randn(8), {}),
}


class Pairs(nn.Module):
    """A contrastive model, which returns the similarity of each sample to each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return a table."""
        hidden = self.first(inputs.mean(1))
        return hidden @ hidden.T


class Contest(nn.Module):
    """Experts with little room: the samples of the last row may find no place in theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores, those without room as zeros."""
        scores = self.last(torch.relu(self.first(inputs.mean(1))))
        rank = scores.amax(1).argsort(descending=True).argsort()
        return scores * (rank < len(scores) - 2)[:, None]


def data() -> TensorDataset:
    """Return sequences with their classes."""
    return TensorDataset(torch.randn(64, 5, 6), torch.randint(3, (64,)))


def train(make, *, change=lambda x: x, rivals: bool = False, **loading) -> nn.Module:
    """Train on batches of a loader, changed before they are given to the model."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    other = torch.optim.Adam(model.parameters(), lr=0.0) if rivals else None
    options = loading or {"batch_size": 16, "shuffle": True}
    for inputs, classes in DataLoader(data(), **options):
        if other is not None:
            other.step()
        optimizer.zero_grad()
        scores = model(change(inputs))
        target = classes if scores.shape[1] == 3 else torch.arange(len(scores))
        F.cross_entropy(scores, target).backward()
        optimizer.step()
    return model


def probes(make, *, probe: bool = True, **options) -> list[Probe]:
    """Record a training and return its probes of this kind."""
    with Recorder("x", probe=probe) as recorder:
        train(make, **options)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "mix"]


def net(table, name: str):
    """Return what makes a network of a table."""
    middle, options = table[name]
    return lambda: Net(middle, **options)


@pytest.mark.parametrize("name", MIXED)
def test_mixing_is_told(name: str) -> None:
    """The output of a sample depends on the others: told once, with the model's name."""
    (probe,) = probes(net(MIXED, name))
    assert probe.measured > 2 * probe.reference > 0
    assert (probe.label, probe.step) == ("Net", 1)
    assert probe.source.startswith(f"{__file__}:")


@pytest.mark.parametrize("name", SOUND)
def test_samples_that_keep_apart_are_not(name: str) -> None:
    """Nor is what mixes on purpose, or gives another output each time anyway."""
    assert probes(net(SOUND, name)) == []


@pytest.mark.parametrize("make", [Pairs, Contest])
def test_tables_and_contests_are_no_mixing(make) -> None:
    """A table of all pairs is no output of one sample; experts that are full drop a few."""
    assert probes(make) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double().float(),
        lambda x: x.view(len(x), 5, 2, 3).flatten(2),
        lambda x: x.clone(),
        lambda x: x * 2 + 0.3 * torch.randn_like(x),
        lambda x: x.masked_fill(torch.rand(5, 6) < 0.3, 0),
    ],
)
def test_the_batch_is_recognised(change) -> None:
    """Cast, reshaped, copied or augmented, it is still what the loader made."""
    assert len(probes(net(MIXED, "mean"), change=change)) == 1


def collated(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Put samples together as the user likes."""
    inputs, classes = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(classes)


def collated_twice(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Put more rows into a batch than it has samples, as graphs have nodes."""
    inputs, classes = collated(samples)
    return inputs.repeat(2, 1, 1), classes.repeat(2)


def test_rows_that_are_put_together_by_hand_are_samples_too() -> None:
    """Where there are as many as samples were drawn, and no other axis is as long."""
    loading = {"shuffle": True, "collate_fn": collated}
    assert probes(net(MIXED, "mean"), batch_size=16, **loading)
    assert probes(net(SOUND, "plain"), batch_size=16, **loading) == []
    assert probes(net(MIXED, "mean"), batch_size=6, drop_last=True, **loading) == []


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 16, "shuffle": False},
        {"batch_size": 16, "shuffle": True, "collate_fn": collated_twice},
        {"batch_size": 2, "shuffle": True},
        {"batch_size": 16, "shuffle": True, "change": lambda x: x.flip(0)},
        {"batch_size": 16, "shuffle": True, "change": lambda x: x + 3 * torch.randn_like(x)},
        {"batch_size": 5, "shuffle": True, "drop_last": True, "change": lambda x: x.swapaxes(0, 1)},
        {"batch_size": 16, "shuffle": True, "rivals": True},
        {"batch_size": 16, "shuffle": True, "probe": False},
    ],
    ids=["in order", "twice", "two", "turned", "noise", "transposed", "rivals", "off"],
)
def test_only_where_rows_are_samples(options) -> None:
    """What is not known to be single samples, drawn at random, is left alone."""
    assert probes(net(MIXED, "mean"), **options) == []


def test_short_rows_are_alike_by_chance() -> None:
    """What was made of them is not known for sure."""
    long, short = torch.randn(8, 30), torch.randn(8, 4)
    assert _same(long * 2, long)
    assert _same(short + 0, short)
    assert not _same(short * 2, short)
    assert not _same(long.flip(0), long)


class Centred(nn.Linear):
    """A layer whose outputs are told without what all rows have in common."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        made = super().forward(inputs)
        return made - made.mean(0)


class Frames(nn.Module):
    """A reader of frames first, samples second, which weighs frames along some axis."""

    def __init__(self, axis: int, whole: bool = False) -> None:
        super().__init__()
        self.first, self.score, self.last = nn.Linear(6, 8), nn.Linear(6, 1), nn.Linear(8, 3)
        self.axis, self.whole = axis, whole

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores of each sample; whole: those of each frame beside the others."""
        weights = self.score(inputs).softmax(self.axis)
        hidden = self.first(inputs)
        made = (weights * hidden).sum(0, keepdim=self.whole)
        return self.last(hidden + made if self.whole else made)


def drawn_frames(axis: int, *, whole: bool = False) -> list[Probe]:
    """Train on samples that are drawn along the second axis; return what was found."""
    torch.manual_seed(0)
    model, clips, kinds = Frames(axis, whole), torch.randn(5, 64, 6), torch.randint(0, 3, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(2):
            for rows in torch.randperm(64).split(16):
                scores = model(clips[:, rows])
                loss = F.cross_entropy(scores.mean(0) if whole else scores, kinds[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "mix"]


def test_samples_along_the_second_axis() -> None:
    """An output of samples alone is known to be one; of both axes, what was drawn may be points."""
    assert drawn_frames(1)
    assert drawn_frames(0) == []
    assert drawn_frames(1, whole=True) == []


def drawn_by_hand(name: str, *, ordered: bool = False, flat: bool = False) -> list[Probe]:
    """Train on rows of a table that is a variable here, at indices; return what was found."""
    torch.manual_seed(0)
    model = Centred(6, 3) if flat else net(MIXED | SOUND, name)()
    table = torch.randn(64, 6) if flat else torch.randn(64, 5, 6)
    kinds = torch.randint(0, 3, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            for rows in (torch.arange(64) if ordered else torch.randperm(64)).split(16):
                loss = F.cross_entropy(model(table[rows]), kinds[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    events = recorder.trace
    return [e for e in events if isinstance(e, Probe) and e.probe == "mix"]


def test_rows_that_are_drawn_by_hand_are_samples() -> None:
    """Where indices in no order take them from a table, and a row is more than a point."""
    assert drawn_by_hand("mean")
    assert drawn_by_hand("plain") == []
    assert drawn_by_hand("mean", ordered=True) == []
    assert drawn_by_hand("mean", flat=True) == []


def test_batches_of_the_users_own_are_left_alone() -> None:
    """A sampler may put together what belongs together."""

    class Episodes(BatchSampler):
        """Batches of one kind each."""

    sampler = Episodes(RandomSampler(range(64)), 16, drop_last=True)
    assert probes(net(MIXED, "mean"), batch_sampler=sampler) == []


def test_the_training_is_the_same_bit_for_bit() -> None:
    """Parameters end where they would have, dropout included."""
    alone = [p.clone() for p in train(net(MIXED, "attention")).parameters()]
    with Recorder("x"):
        watched = list(train(net(MIXED, "attention")).parameters())
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
