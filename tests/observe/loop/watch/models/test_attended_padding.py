"""Attention over padding: what is padding, and what is seen."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.attended_padding import _padding_of

AT_THE_END = [[3, 4, 0, 0, 0], [5, 6, 7, 0, 0], [5, 6, 7, 8, 0]]


@pytest.mark.parametrize(
    ("rows", "padding"),
    [
        (AT_THE_END, [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]),
        ([[0, 0, 3], [0, 4, 5], [6, 7, 8]], [[1, 1, 0], [1, 0, 0], [0, 0, 0]]),
        ([[3, 4, 1, 1], [5, 6, 1, 1]], None),  # as many in each row
        ([[3, 4, 5], [5, 6, 7]], None),
        ([[3, 4, 0], [5, 6, 7]], None),  # a single one is a word
    ],
)
def test_padding(rows, padding) -> None:
    """It is a token at one end of the rows, in runs of different lengths."""
    found = _padding_of(torch.tensor(rows))
    assert (found if found is None else found.int().tolist()) == padding


class Fused(nn.Module):
    """Attention whose mask is True where a place is seen."""

    def forward(self, states, seen):
        """Return what is seen."""
        heads = states[:, None]
        mask = seen[:, None, None]
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)[:, 0]


class WithDropout(nn.Module):
    """Attention that loses some of its weights, which torch does not fuse."""

    def forward(self, states, seen):
        """Return what is seen."""
        heads, mask = states[:, None], seen[:, None, None]
        attend = nn.functional.scaled_dot_product_attention
        return attend(heads, heads, heads, mask, dropout_p=0.1)[:, 0]


class ByHand(nn.Module):
    """Attention of a softmax over scores."""

    def forward(self, states, seen):
        """Return what is seen."""
        scores = (states @ states.mT).masked_fill(~seen[:, None], -torch.inf)
        return scores.softmax(-1) @ states


class Pooled(nn.Module):
    """A mean of the words, each by a weight of its own."""

    def forward(self, states, seen):
        """Return what is seen."""
        weights = states.sum(-1).masked_fill(~seen, -1e9).softmax(-1)
        return (weights[..., None] * states).sum(1)


class Layer(nn.Module):
    """Attention of torch, which is asked for its weights too."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, states, seen):
        """Return what is seen."""
        return self.attention(states, states, states, ~seen)[0]


def attended(kind, hides) -> list[float]:
    """Train, and return in how many steps attention saw the padding alone."""
    torch.manual_seed(0)
    ids = torch.tensor(AT_THE_END)
    with Recorder("x") as recorder:
        words, attention = nn.Embedding(9, 8), kind()
        optimizer = torch.optim.SGD([*words.parameters(), *attention.parameters()], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            attention(words(ids), hides(ids)).square().mean().backward()
            optimizer.step()
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [probe.measured for probe in probes if probe.probe == "attended"]


@pytest.mark.parametrize("kind", [Fused, WithDropout, ByHand, Pooled, Layer])
def test_what_is_seen(kind) -> None:
    """Whoever computes the attention, padding alone is told of, and nothing else."""
    assert attended(kind, lambda ids: ids == 0) == [3.0]
    assert attended(kind, lambda ids: ids != 0) == []
    assert attended(kind, lambda ids: ids > -1) == []
    assert attended(kind, lambda ids: ids < 6) == []
