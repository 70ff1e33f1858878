"""Runs that make an optimizer anew for each task: they are seen as closely as one optimizer is."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import network
from trainguard.events.loop import Step
from trainguard.observe.loop import recorder as module
from trainguard.observe.loop.recorder import Recorder


def adapt(model: nn.Module, steps: int) -> None:
    """Learn a task with an optimizer of its own, which is gone afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(8, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()


def learn_tasks(count: int, steps: int = 5) -> Recorder:
    """Learn so many tasks, each from what those before it have left, now and then on a copy."""
    model = network()
    with Recorder("x") as recorder:
        for task in range(count):
            before = copy.deepcopy(model.state_dict())
            adapt(model, steps)
            after = model.state_dict()
            mixed = {key: 0.5 * (before[key] + after[key]) for key in before}
            model.load_state_dict(mixed)
            if task % 20 == 19:
                adapt(copy.deepcopy(model), steps)
        windows = list(recorder.windows)
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert len(windows) <= module._MANY + 1
    return recorder


@pytest.mark.parametrize("count", [40, 120])
def test_steps_are_counted_once(count: int) -> None:
    """All of them, and none by hand, though models move between them and optimizers are gone."""
    recorder = learn_tasks(count)
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert recorder.steps == 5 * (count + count // 20)
    assert {event.optimizer.partition("#")[0] for event in steps} == {"SGD"}
    assert sum(event.span for event in steps) <= recorder.steps


def test_later_ones_are_seen_as_seldom_as_one() -> None:
    """The first optimizers are watched in all steps, those after many as one would be by then."""
    steps = [event for event in learn_tasks(120).trace if isinstance(event, Step)]
    one = network()
    with Recorder("x") as recorder:
        adapt(one, 630)
    alone = [event for event in recorder.trace if isinstance(event, Step)]
    dense = 5 * module._MANY
    assert dense <= len(steps) <= dense + len(alone)


def test_a_model_that_goes_on_by_hand_is_seen() -> None:
    """Its optimizer never stepped: what moves it is a step."""
    model = network()
    with Recorder("x") as recorder:
        torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            inputs = torch.randn(8, 4)
            F.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    assert recorder.steps == 12


def test_a_model_whose_optimizer_is_gone_unused() -> None:
    """It goes on by hand, beside another one that has an optimizer: both make steps."""
    model, other = network(), network()
    with Recorder("x") as recorder:
        torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
        for _ in range(12):
            inputs = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(inputs) - inputs.sum(1, keepdim=True) + other(inputs)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    assert recorder.steps == 24


def test_optimizers_of_an_earlier_training_do_not_count() -> None:
    """However many of them are still in memory, new ones are looked at as in any other run."""
    left = [torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(40)]
    net = nn.Linear(3, 1)
    with Recorder("x") as recorder:
        own = [torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(2)]
        for optimizer in (*own, *own):
            optimizer.zero_grad()
            net(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        windows = list(recorder.windows)
        used = [(window.before, window.index) for window in windows if window.is_used]
    assert len(windows) >= len(left)
    assert used == [(0, 2), (0, 2)]
