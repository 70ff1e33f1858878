"""Attention by hand: along which axis its weights sum to one, and along which they are used."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.gradients.autograd_graph import below
from trainguard.observe.loop.watch.models.attention_axes import _holder
from trainguard.observe.loop.watch.models.mixture_axes import find_mixture_axes


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


@SHAPES
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_is_followed_through_views(heads, first) -> None:
    """The axis is known behind heads, dropout and transposes, on either side of the product."""
    assert attend(-1, heads, first=first) == []
    found = attend(-2, heads, first=first)
    assert [probe.label for probe in found] == [f"softmax over axis 2 of (N,{heads},6,6)"]
    assert "test_attention_axes.py:" in found[0].source


def mix(own: int, used: int | tuple[int, ...], change: Callable) -> list[tuple[str, float, float]]:
    """Learn a mixture whose weights are normalised along one axis; return what is told."""
    layer = nn.Linear(8, 10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            densities, weights = layer(torch.randn(4, 6, 8)).chunk(2, dim=-1)
            known = change(weights.log_softmax(own))
            optimizer.zero_grad()
            (-(known - densities.square()).logsumexp(used).mean()).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [p for p in recorder.trace if isinstance(p, Probe) and p.probe == "mixture axis"]
    return [(probe.label, probe.measured, probe.reference) for probe in found]


@SHAPES
def test_weights_of_a_mixture_along_another_axis() -> None:
    """However the axes are counted."""
    assert mix(-2, -1, torch.clone) == [("-2 and -1", 3, 3)]
    assert mix(0, 2, torch.clone) == [("-3 and -1", 3, 3)]
    assert mix(-1, -1, torch.clone) == mix(2, -1, torch.clone) == []


@SHAPES
@pytest.mark.parametrize(
    ("weigh", "found"),
    [
        (lambda weights: weights.softmax(-1), [(3, 3)]),
        (lambda weights: F.softmax(weights, -1), [(3, 3)]),
        (lambda weights: weights.softmax(-1).log(), []),
        (lambda weights: weights.softmax(0), []),
        (lambda weights: 2 * weights.softmax(-1), []),
        (lambda weights: weights.log_softmax(-1), []),
    ],
    ids=["method", "function", "logarithms", "other axis", "scaled", "right"],
)
def test_weights_of_a_mixture_in_place_of_their_logarithms(weigh, found) -> None:
    """A softmax that is added to logarithms, along the axis of the sum."""
    layer = nn.Linear(8, 10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            densities, weights = layer(torch.randn(4, 6, 8)).chunk(2, dim=-1)
            optimizer.zero_grad()
            (-(weigh(weights) - densities.square()).logsumexp(-1).mean()).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    seen = [p for p in recorder.trace if isinstance(p, Probe) and p.probe.startswith("mixture p")]
    assert [(probe.measured, probe.reference) for probe in seen] == found
    assert all("test_attention_axes.py:" in probe.source for probe in seen[:1]) or not seen


class Mixture(nn.Module):
    """Densities, and the logarithms of their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both."""
        densities, weights = self.layer(x).chunk(2, dim=-1)
        return densities, weights.log_softmax(0)


@SHAPES
def test_the_line_of_the_weights() -> None:
    """Where a class of the user's takes their logarithms, it is told."""
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            densities, known = model(torch.randn(4, 6, 8))
            optimizer.zero_grad()
            (-(known - densities.square()).logsumexp(-1).mean()).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    (probe,) = [p for p in recorder.trace if isinstance(p, Probe) and p.probe == "mixture axis"]
    lines, first = inspect.getsourcelines(Mixture)
    (line,) = [n for n, code in enumerate(lines, first) if "log_softmax" in code]
    assert probe.source.endswith(f"test_attention_axes.py:{line}")


def test_chains_of_states_are_left_alone() -> None:
    """Steps from state to state are normalised over the next one, and summed over the last."""
    table, start = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5))
    optimizer = torch.optim.SGD([table, start], lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            known = start.log_softmax(0)
            for _ in range(4):
                known = (known[:, None] + table.log_softmax(1)).logsumexp(0)
            optimizer.zero_grad()
            (-known[2]).backward()
            optimizer.step()
    assert [p for p in recorder.trace if isinstance(p, Probe) and p.probe == "mixture axis"] == []


def test_weights_that_are_moved() -> None:
    """Nothing is said where something lies between, or several axes are summed."""
    assert mix(1, -1, lambda known: known.exp()) == []
    assert mix(0, (1, 2), torch.clone) == []
    numbers = torch.randn(4, 6, requires_grad=True)
    product = (numbers.log_softmax(0) * numbers).logsumexp(1).sum()
    assert list(find_mixture_axes(below(product.grad_fn, 64))) == []
