"""Trainings that go on with what another one has learned: whether it is still there."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def learn(model: nn.Module, steps: int = 40) -> None:
    """Make some steps with an optimizer of their own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def draw(layer: nn.Module) -> None:
    """Draw a layer anew."""
    if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)


def draw_as_torch_does(layer: nn.Module) -> None:
    """Draw it by its own method."""
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()


def go_on(draws, steps: int = 40, head: bool = True) -> list[Probe]:
    """Train an encoder with a decoder, let somebody draw, and train it with a head."""
    encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    first = nn.Sequential(encoder, nn.Linear(3, 4))
    with Recorder("x") as recorder:
        learn(first, steps)
        second = nn.Sequential(encoder, nn.Linear(3, 2)) if head else first
        draws(second)
        learn(second)
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "drawn anew"]


@pytest.mark.parametrize("way", [draw, draw_as_torch_does])
def test_an_encoder_that_is_drawn_anew(way) -> None:
    """All that was learned is gone."""
    (probe,) = go_on(lambda model: model.apply(way))
    assert (probe.measured, probe.step) == (2, 40)
    assert probe.source.rpartition(":")[0] == __file__


@pytest.mark.parametrize(
    "draws",
    [
        lambda model: model[1].apply(draw),
        lambda model: model[0][2].apply(draw),
        lambda model: None,
    ],
    ids=["head", "top layer", "nothing"],
)
def test_what_is_kept_is_fine(draws) -> None:
    """Some layers may begin anew."""
    assert go_on(draws) == []


def test_models_that_begin_once_more() -> None:
    """All of them does, as for another fold; and what has hardly learned loses nothing."""
    assert go_on(lambda model: model.apply(draw), head=False) == []
    assert go_on(lambda model: model.apply(draw), steps=10) == []


@pytest.mark.parametrize("way", [draw, draw_as_torch_does])
def test_a_head_that_begins_anew(way) -> None:
    """It is trained alone, over what the training before has learned."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with Recorder("x") as recorder:
        learn(model)
        model[0].requires_grad_(requires_grad=False)
        way(model[2])
        optimizer = torch.optim.SGD(model[2].parameters(), lr=1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "drawn anew"] == []
