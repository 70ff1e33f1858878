"""Attention by hand: along which axis its weights sum to one, and along which they are used."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.attention_axes import _holder


@pytest.mark.parametrize(("axis", "held"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_axes_of_a_view(axis, held) -> None:
    """Heads are held by the first axis of (batch * heads, queries, keys)."""
    assert _holder(axis, (16, 4, 6, 7), (64, 6, 7)) == held


def attend(axis: int, heads: int, *, first: bool) -> list[Probe]:
    """Return the probes of five steps of attention by hand; first: weights before the values."""
    layer = nn.Linear(8, 24)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            three = layer(torch.randn(4, 6, 8)).view(4, 6, 3, heads, 8 // heads)
            query, key, value = three.permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-2, -1) / 2
            weights = nn.functional.dropout(scores.softmax(axis), 0.1)
            mixed = weights @ value
            if not first:
                mixed = (value.transpose(-2, -1) @ weights.transpose(-2, -1)).transpose(-2, -1)
            optimizer.zero_grad()
            mixed.square().mean().backward()
            optimizer.step()
    return [p for p in recorder.trace if isinstance(p, Probe) and p.probe.startswith("attention a")]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_is_followed_through_views(heads, first) -> None:
    """The axis is known behind heads, dropout and transposes, on either side of the product."""
    assert attend(-1, heads, first=first) == []
    found = attend(-2, heads, first=first)
    assert [probe.label for probe in found] == [f"softmax over axis 2 of (N,{heads},6,6)"]
    assert "test_attention_axes.py:" in found[0].source
