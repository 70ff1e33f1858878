"""A sample edited: what becomes of the others, and when nobody can tell."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual.samples import _fades_away
from trainguard.observe.loop.recorder import Recorder


def plain(scores, classes) -> torch.Tensor:
    """Return the loss of scores, as they are."""
    return F.cross_entropy(scores, classes)


def ask(loss_of=plain, middle=None, *, shuffle=True, model=None) -> list[WhatIf]:
    """Record a training, and return what it was asked about a sample."""
    torch.manual_seed(0)
    points = torch.randn(64, 4, 3)
    data = TensorDataset(points, (points.sum((1, 2)) > 0).long())
    with Recorder("x") as recorder:
        net = model or nn.Sequential(
            nn.Flatten(), nn.Linear(12, 8), middle or nn.Tanh(), nn.Linear(8, 2)
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for inputs, classes in DataLoader(data, 16, shuffle=shuffle):
            optimizer.zero_grad()
            loss_of(net(inputs), classes).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "a sample edited"]


class Recurrent(nn.Module):
    """Takes the batch for time."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)  # how far a sample is remembered depends on the weights
            self.recurrent, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, inputs):
        """Return the scores of the last position."""
        return self.head(self.recurrent(inputs)[0][:, -1])


class Forgetful(Recurrent):
    """Takes it for time too, with gates that forget half in each step."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.recurrent.bias_hh_l0, -0.75)


class Repeated(nn.Module):
    """Scores each of the positions of a sample."""

    def __init__(self, transposed=False) -> None:
        super().__init__()
        self.head, self.transposed = nn.Linear(3, 2), transposed

    def forward(self, inputs):
        """Return the scores of all positions, one sample after the other, or by position."""
        scores = self.head(inputs)
        return (scores.transpose(0, 1) if self.transposed else scores).reshape(-1, 2)


def test_samples_that_stay_apart() -> None:
    """One answer settles it, for a row for each sample and for several in either order."""
    (event,) = ask()
    assert (event.outcome, event.measured, event.reference) == ("answered", 0.0, 15.0)
    assert (event.label, event.smallest) == ("sample 0 of 16", "")
    for transposed in (False, True):

        def loss_of(scores, classes, transposed=transposed):
            """Return the loss of four positions for each class."""
            each = classes.repeat(4) if transposed else classes.repeat_interleave(4)
            return F.cross_entropy(scores, each)

        (event,) = ask(loss_of, model=Repeated(transposed))
        assert (event.outcome, event.measured) == ("answered", 0.0)


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({"model": Recurrent()}, (1.0, 1.0)),
        ({"loss_of": lambda scores, y: F.cross_entropy(scores - scores.mean(0), y)}, (0.0, 0.0)),
    ],
)
def test_samples_that_mix(options, inside) -> None:
    """Inside of the model, and after it."""
    events = ask(**options)
    assert [event.step for event in events] == [1, 2]
    assert {(e.measured, e.reference, e.numbers) for e in events} == {(15.0, 15.0, (*inside, 1.0))}
    assert events[0].smallest.startswith("with another sample 0, [1, 0] of what cross_entropy is")
    place, _, line = events[0].enters.partition(" at ")
    assert place == ("`recurrent` (LSTM)" if inside[0] else "`sub`")
    assert "test_samples.py:" in line


@pytest.mark.parametrize("mixes", [False, True])
def test_sequences_that_are_aligned(mixes) -> None:
    """The samples of ctc_loss are on its second axis; a reshape that puts it there mixes them."""
    labels, lengths = torch.ones(16, 2, dtype=torch.long), torch.full((16,), 5)

    def align(scores, _):
        """Return the loss of five frames of each sample."""
        frames = scores.view(16, 5, 2)
        frames = frames.reshape(5, 16, 2) if mixes else frames.permute(1, 0, 2)
        return F.ctc_loss(frames.log_softmax(-1), labels, lengths, torch.full((16,), 2))

    def model() -> nn.Module:
        """Return what scores five frames of a sample at once."""
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 10))

    events = ask(align, model=model())
    assert {event.outcome for event in events} == {"answered"}
    assert all((event.measured > 0) == mixes for event in events)


def test_a_batch_that_is_taken_for_time() -> None:
    """A recurrence forgets sample 0 before it has come to the last ones."""
    torch.manual_seed(0)
    events = ask(model=Forgetful())
    assert [event.numbers for event in events] == [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)]
    assert all(5 <= event.measured < 0.9 * event.reference for event in events)


def of_ghosts(scores, classes) -> torch.Tensor:
    """Return the loss of scores that are centred in each half of the batch."""
    halves = scores.view(2, 8, 2)
    return F.cross_entropy((halves - halves.mean(1, keepdim=True)).view(16, 2), classes)


def of_order(scores, classes) -> torch.Tensor:
    """Return how far the scores are from those of another distribution."""
    return F.l1_loss(scores[:, 0].sort().values, torch.linspace(-1, 1, 16))


def of_neighbours(scores, classes) -> torch.Tensor:
    """Return the loss of scores from which a part of the three samples before is taken."""
    before = sum(scores.roll(k, 0) for k in (1, 2, 3)) * torch.arange(16).gt(2)[:, None]
    return F.cross_entropy(scores - 0.1 * before, classes)


@pytest.mark.parametrize("loss_of", [of_ghosts, of_order, of_neighbours])
def test_samples_that_mix_without_fading(loss_of) -> None:
    """Groups that are normalised, an order, and neighbours: no recurrence runs over the batch."""
    events = ask(loss_of)
    assert events
    assert all(event.numbers[1] == 0.0 for event in events)
    assert any(event.measured < 0.9 * event.reference for event in events)


class Kept(nn.Tanh):
    """Centres its batch, and keeps the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, values):
        """Return what is left."""
        self.mean = values.mean(0).detach()
        return super().forward(values - self.mean)


class Scaled(nn.Tanh):
    """Divides by how far its batch goes, and keeps a number of that."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, values):
        """Return what is left."""
        scale = float(values.detach().std())
        self.scale = 0.9 * self.scale + 0.1 * scale
        return super().forward(values / scale)


def centred(scores, classes) -> torch.Tensor:
    """Return how far scores are from those of their batch."""
    return F.mse_loss(scores, scores.detach().mean(0).expand(16, 2))


def noisy(scores, classes) -> torch.Tensor:
    """Return a loss after as many random numbers were drawn as the scores are large."""
    torch.rand(int(scores.detach().abs().sum() * 1e4))
    return plain(scores, classes)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"middle": nn.BatchNorm1d(8)}, "the batch is normalised on purpose"),
        ({"middle": Kept()}, "the model keeps statistics of its batches"),
        ({"middle": Scaled()}, "the model keeps statistics of its batches"),
        ({"loss_of": centred}, "the edit changed the targets of other samples too"),
        ({"loss_of": noisy}, "the edit changed how many random numbers are drawn"),
        (
            {"loss_of": lambda scores, y: F.cross_entropy(scores @ scores.T, torch.arange(16))},
            "no loss function is given a row for each sample",
        ),
        ({"loss_of": lambda s, y: s.square().mean()}, "no loss function of torch was called"),
    ],
)
def test_an_edit_that_says_nothing(options, reason) -> None:
    """Statistics, targets and tables of the batch, random numbers and losses by hand."""
    assert {(event.outcome, event.reason) for event in ask(**options)} == {("void", reason)}


def test_samples_in_order_are_not_asked() -> None:
    """What comes one after the other may belong together."""
    assert ask(shuffle=False) == []


def test_what_an_earlier_training_left_behind_is_no_matter() -> None:
    """An optimizer that is still in memory, and holds nothing of this run."""
    left = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert [event.outcome for event in ask()] == ["answered"]
    assert left.param_groups


@pytest.mark.parametrize(
    ("changes", "fades"),
    [
        ([1e-1, 1e-2, 1e-3, 1e-4, 1e-5], True),
        ([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0, 0.0], True),
        ([1e-1, 1e-2, 1e-3, 1e-4], False),  # neighbours
        ([1e-1, 0.0, 1e-2, 1e-3, 1e-4, 1e-5], False),  # not from each to the next
        ([1e-1, 1e-1, 1e-1, 1e-1, 1e-1, 1e-1], False),
        ([1e-5, 1e-1, 1e-5, 1e-1, 1e-5, 1e-1, 1e-5] * 2, False),
        ([0.5**n * (4 if n % 3 == 1 else 1) for n in range(24)], True),  # as a maximum over places
        ([0.5**n * (4 if n % 3 == 1 else 1) for n in range(9)], False),
        ([0.5 ** (n % 2 * 12) for n in range(24)] + [1e-4], False),
    ],
)
def test_what_fades_from_one_sample_to_the_next(changes: list[float], fades: bool) -> None:
    """Nearly each smaller than the one before, or all in all, where there are many."""
    assert _fades_away(changes) is fades
