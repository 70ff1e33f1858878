"""Where the states of padded rows are read."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.row_ends import ends_of

ROWS = torch.tensor([[3, 4, 0, 0, 0], [5, 6, 7, 0, 0], [5, 6, 7, 8, 9]])


@pytest.mark.parametrize(
    ("rows", "padding", "ends"),
    [
        (ROWS, 0, [3, 2, 0]),
        (ROWS, -1, [3, 2, 0]),
        (torch.tensor([[3, 0, 0, 0], [5, 6, 0, 0]]), -1, [1, 0]),  # one may tell the end
        (torch.tensor([[0, 3, 0, 0], [5, 6, 7, 8]]), -1, None),  # it is a word too
        (torch.tensor([[3, 0, 0], [5, 0, 0]]), 0, None),
        (ROWS.flip(1), 0, None),
    ],
)
def test_ends(rows, padding, ends) -> None:
    """Padding is what an embedding says, or what comes at ends alone."""
    token = padding if padding >= 0 else int(rows[:, -1].mode().values)
    found = ends_of(rows, token, known=padding >= 0)
    assert (found if found is None else found.tolist()) == ends


WAYS = {
    "last": lambda states: states[:, -1],
    "slice": lambda states: states[:, -1:].squeeze(1),
    "upright": lambda states: states.transpose(0, 1)[-1],
    "normalised": lambda states: nn.functional.layer_norm(states, (8,))[:, -1],
    "first": lambda states: states[:, 0],
    "mean": lambda states: states.mean(1),
    "both": lambda states: states.mean(1) + states[:, -1],
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read(way) -> None:
    """The last place alone is told of, however it is taken."""
    with Recorder("x") as recorder:
        words, body = nn.Embedding(10, 8), nn.RNN(8, 8, batch_first=True)
        optimizer = torch.optim.SGD([*words.parameters(), *body.parameters()], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            WAYS[way](body(words(ROWS))[0]).square().mean().backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    found = [probe.step for probe in probes if probe.probe == "read"]
    assert found == ([] if way in ("first", "mean", "both") else [3])


class Reader(nn.Module):
    """A recurrent layer over features, whose states are read in a way."""

    def __init__(self, way: str, *, upright: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.RNN(3, 8, batch_first=not upright), nn.Linear(8, 1)
        self.way, self.upright = way, upright

    def forward(self, x: torch.Tensor, *_lengths: torch.Tensor) -> torch.Tensor:
        """Return what it makes of the states that it reads."""
        states = self.body(x)[0]
        return self.head(states[-1] if self.upright else WAYS[self.way](states))


def features_read(
    way: str, *, ends: tuple[int, ...] = (3, 2, 2, 0), more: tuple[int, ...] = (0, 1), **given
) -> list[Probe]:
    """Train on rows with so much padding, and more in turns; return what is told of them."""
    upright, told = given.get("upright", False), given.get("told", False)
    model = Reader(way, upright=upright)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(4):
            width = 6 + more[step % len(more)]
            lengths = width - torch.tensor(ends)
            real = torch.arange(width) < lengths[:, None]
            rows = torch.randn(len(ends), width, 3) * real[..., None]
            optimizer.zero_grad()
            beside = (lengths,) if told else ()
            model(rows.transpose(0, 1) if upright else rows, *beside).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "read"]


@pytest.mark.parametrize("way", ["last", "slice", "normalised"])
def test_features_are_read_in_their_padding(way: str) -> None:
    """Where each batch is as wide as its longest row."""
    (probe,) = features_read(way)
    assert (probe.step, probe.reference, probe.measured) == (3, 3.0, 0.75)
    assert probe.label == "rows of features"


def test_features_are_read_where_time_comes_first() -> None:
    """As the recurrent layers of torch take them."""
    assert len(features_read("last", upright=True)) == 1


def test_rows_of_one_width_are_padded_where_their_lengths_are_given() -> None:
    """Else they may be zero at their ends, as the last rows of pictures are."""
    assert len(features_read("last", more=(0,), told=True)) == 1
    assert features_read("last", more=(0,)) == []


@pytest.mark.parametrize(
    ("way", "ends"), [("mean", (3, 2, 2, 0)), ("last", (0, 0, 0, 0)), ("last", (3, 0, 0, 0))]
)
def test_features_that_are_read_elsewhere_or_are_whole_are_silent(way, ends) -> None:
    """So are batches in which few rows are padded."""
    assert features_read(way, ends=ends) == []
