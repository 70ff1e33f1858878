"""Views that have the shape of exchanged axes, and those that only look like it."""

import pytest
import torch
from torch import nn

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.reshaped_axes import exchanges, leaves_channels


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ((9, 8, 6, 6), (9, 72, 4), True),
        ((9, 8, 8, 8), (9, 128, 4), True),  # the sizes fit by chance
        ((9, 64, 7, 7), (9 * 49, 64), True),
        ((9, 6, 4, 10), (9, 10, 24), True),
        ((9, 12, 7), (9, 7, 12), True),
        ((9, 8, 6, 6), (9, 288), False),
        ((9, 8, 6, 6), (9, 8, 36), False),
        ((9, 8, 6, 6), (9, 4, 72), False),  # groups of two channels
        ((9, 512, 2, 2), (9, 256, 8), False),
        ((9, 8, 6, 6), (9 * 8, 36), False),
        ((9, 8, 6, 6), (9, 2, 4, 6, 6), False),
        ((9, 512, 1, 1), (9, 512), False),
    ],
)
def test_channels(before, after, wrong) -> None:
    """Channels of one place are not beside each other before they are moved."""
    assert leaves_channels(before, after) == wrong


@pytest.mark.parametrize(
    ("before", "after", "certain", "wrong"),
    [
        ((9, 7, 12), (9, 12, 7), False, True),
        ((9, 6, 12), (9, 12, 6), False, False),
        ((9, 6, 12), (9, 12, 6), True, True),
        ((9, 7, 12), (9, 4, 7, 3), False, True),
        ((9, 4, 7, 3), (9, 7, 12), False, True),
        ((9, 64, 10), (9, 10, 8, 8), False, True),
        ((9, 7, 12), (9, 7, 4, 3), False, False),
        ((9, 7, 12), (9, 84), False, False),
        ((9, 4, 64), (9, 16, 4, 4), False, False),  # groups of channels, and back
        ((9, 16, 4, 4), (9, 4, 64), False, False),
        ((9, 4, 16), (9, 16, 2, 2), False, False),
        ((9, 7, 7), (9, 7, 7), True, False),
        ((7, 9, 12), (9, 7, 12), True, False),  # that mixes samples, and is found by this
        ((9, 6, 8, 3), (9, 3, 6, 8), True, True),
        ((9, 2, 1, 16, 16), (9, 1, 16, 16), True, False),  # two views of each sample
        ((9, 6, 8, 3), (9, 3, 8, 6), True, False),
        ((9, 96, 8, 4), (9, 8, 96, 4), False, True),  # heads into places
        ((9, 8, 8, 4), (9, 8, 8, 4), False, False),
        ((9, 96, 8, 4), (9, 12, 64, 4), False, False),
    ],
)
def test_exchanges(before, after, certain, wrong) -> None:
    """Sizes in another order are those of axes that were not moved."""
    assert exchanges(before, after, certain=certain) == wrong


@SHAPES
def test_reductions_are_left_alone() -> None:
    """What is taken together over the last axis of a view may be any neighbours."""
    told = []
    for reduced in (False, True):
        layer, picture = nn.Conv2d(3, 8, 1), torch.randn(4, 3, 8, 8)
        with Recorder("x") as recorder:
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for _ in range(3):
                rows = layer(picture).view(4, -1, 4)
                (rows.mean(-1) if reduced else rows.sigmoid()).square().sum().backward()
                optimizer.step()
        probes = [event for event in recorder.trace if isinstance(event, Probe)]
        told.append([probe.label for probe in probes if probe.probe == "reshaped"])
    assert told == [["Conv2d.weight (N,8,8,8) (N,128,4)"], []]


@SHAPES
def test_parts_of_channels_that_a_layer_learns_from() -> None:
    """Capsules are as good in another order: they only make a note."""
    conv, last, picture = nn.Conv2d(3, 8, 1), nn.Linear(4, 2), torch.randn(4, 3, 8, 8)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD([*conv.parameters(), *last.parameters()], lr=0.1)
        for _ in range(3):
            last(conv(picture).view(4, -1, 4).sigmoid()).square().sum().backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    assert [p.probe for p in probes if p.probe.startswith("reshaped")] == ["reshaped in part"]


INPUTS = {
    "convolution": (nn.Conv1d(5, 4, 3), (9, 20, 5), lambda x: x.view(-1, 5, 20), True),
    "pictures": (nn.Conv2d(3, 4, 3), (9, 6, 8, 3), lambda x: x.reshape(-1, 3, 6, 8), True),
    "a part": (nn.Conv1d(5, 4, 3), (9, 20, 5), lambda x: x[2:6].view(-1, 5, 20), True),
    "norm": (nn.BatchNorm1d(5), (9, 20, 5), lambda x: x.view(-1, 5, 20), True),
    "linear": (nn.Linear(21, 4), (9, 21, 5), lambda x: x.view(-1, 5, 21), True),
    "recurrent": (nn.RNN(6, 4), (9, 7, 6), lambda x: x.transpose(0, 1), False),
    "moved": (nn.Conv1d(5, 4, 3), (9, 20, 5), lambda x: x.transpose(1, 2), False),
    "copied": (nn.Conv1d(5, 4, 3), (9, 20, 5), lambda x: x.mT.contiguous().view(9, 5, 20), False),
    "patches": (nn.Linear(20, 4), (9, 20, 4), lambda x: x.view(-1, 4, 20), False),
    "one channel": (nn.Conv2d(1, 4, 3), (9, 6, 8), lambda x: x.view(-1, 1, 6, 8), False),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name) -> None:
    """An input that is viewed in the shape of exchanged axes is told of."""
    layer, shape, view, wrong = INPUTS[name]
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            made = layer(view(torch.randn(shape)))
            (made[0] if isinstance(made, tuple) else made).square().sum().backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    told = [probe.label.split()[0] for probe in probes if probe.probe == "reshaped"]
    assert told == ["input"] * wrong


class Reads(nn.Module):
    """A recurrent layer over a signal of (N, 5, 21)."""

    def __init__(self, layer, view) -> None:
        super().__init__()
        self.layer, self.view = layer, view

    def forward(self, x):
        """Return the states of all places."""
        return self.layer(self.view(x))[0]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize(
    ("view", "batch_first", "wrong"),
    [
        (lambda x: x.reshape(-1, 21, 5), True, True),
        (lambda x: x.reshape(-1, 21, 5).transpose(0, 1), False, True),
        (lambda x: x.transpose(1, 2), True, False),
        (lambda x: x.permute(2, 0, 1), False, False),
    ],
    ids=["reshaped", "time first", "moved", "permuted"],
)
def test_inputs_of_recurrent_layers(kind, view, batch_first, wrong) -> None:
    """They are copied before they are used; what a model was given tells in which order."""
    net = Reads(kind(5, 4, batch_first=batch_first), view)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(2):
            net(torch.randn(9, 5, 21)).square().sum().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    labels = [e.label for e in recorder.trace if isinstance(e, Probe) and e.probe == "reshaped"]
    assert labels == ["input (N,5,21) (N,21,5)"] * wrong


class NamesItsAxes(nn.Module):
    """A layer for what is measured at each of 20 places, over a signal of (N, 5, 20)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x):
        """Return what the layer makes of each place."""
        n, c, t = x.shape
        return self.layer(x.reshape(n, t, c))


class Pieces(NamesItsAxes):
    """The same, over pieces of one channel each, as they are written."""

    def forward(self, x):
        """Return what the layer makes of each piece."""
        return self.layer(x.reshape(len(x), -1, 5))


@pytest.mark.parametrize(("net", "wrong"), [(NamesItsAxes(), True), (Pieces(), False)])
def test_axes_that_are_named(net, wrong) -> None:
    """Where sizes may be those of pieces, the code tells what is meant."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            net(torch.randn(9, 5, 20)).square().sum().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    told = [probe.label for probe in probes if probe.probe == "reshaped"]
    assert told == ["input (N,5,20) (N,20,5)"] * wrong


def test_sequences_of_one_place_have_one_order() -> None:
    """A layer of torch exchanges the axes of time and samples, which moves no number there."""
    net = nn.LSTM(5, 4, batch_first=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(2):
            net(torch.randn(9, 1, 5))[0].square().sum().backward()
            optimizer.step()
    assert not any(isinstance(e, Probe) and e.probe == "reshaped" for e in recorder.trace)


@SHAPES
@pytest.mark.parametrize("way", ["reshape", "transpose"])
def test_time_first_for_a_loss(way: str) -> None:
    """CTC takes (T, N, K); lengths that change from batch to batch are the same mistake."""
    torch.manual_seed(0)
    model = nn.Linear(5, 7)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for length in (12, 10, 14):
            scores = model(torch.randn(4, length, 5)).log_softmax(-1)
            first = scores.transpose(0, 1)
            first = scores.reshape(first.shape) if way == "reshape" else first
            targets, lengths = torch.randint(1, 7, (4, 3)), torch.full((4,), length)
            optimizer.zero_grad()
            nn.functional.ctc_loss(first, targets, lengths, torch.full((4,), 3)).backward()
            optimizer.step()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "reshaped"]
    found = [(probe.measured, probe.reference, probe.label) for probe in probes]
    assert found == ([(3.0, 3.0, "- (N,T,K) (T,N,K)")] if way == "reshape" else [])
