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
