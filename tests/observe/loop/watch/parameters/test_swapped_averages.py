"""Averages that stand in the place of their model in an evaluation."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.parameters.swapped_averages import SwappedAverages

Put = Callable[[nn.Module, dict[str, torch.Tensor]], None]


def load(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Put a state into a model as torch does it."""
    model.load_state_dict(state)


def write(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Write numbers past autograd."""
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name])


def point(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give parameters other tensors for their numbers."""
    for name, parameter in model.named_parameters():
        parameter.data = state[name].clone()


def run(
    put: Put = write,
    *,
    restores: int = 0,
    every: int = 1,
    pull: float = 0.2,
    swaps: bool = True,
    goes_on: bool = False,
    steps: int = 12,
    epochs: int = 5,
) -> tuple[list[tuple[float, float]], bool]:
    """Train with an average; return what is told of it, and whether anything was looked at."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model: Any = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        ema = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for epoch in range(epochs):
            for step in range(steps):
                inputs = torch.randn(16, 4)
                optimizer.zero_grad()
                (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
                if step % every == every - 1:
                    with torch.no_grad():
                        for slow, fast in zip(ema.parameters(), model.parameters(), strict=True):
                            slow.lerp_(fast, pull)
                    if goes_on:
                        put(model, ema.state_dict())
            kept = copy.deepcopy(model.state_dict())
            if swaps:
                put(model, ema.state_dict())
            with torch.no_grad():
                model(torch.randn(64, 4))
            if epoch < restores:
                put(model, kept)
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "swapped average"]
    looked = "swapped average" in recorder.trace.conditions["looked"]
    return [(probe.measured, probe.reference) for probe in found], looked


@pytest.mark.parametrize("put", [load, write, point])
def test_a_model_that_is_not_put_back(put: Put) -> None:
    """After each evaluation that something is learned after."""
    assert run(put) == ([(4.0, 4.0)], True)


def test_long_epochs() -> None:
    """Of which most steps are not watched."""
    assert run(steps=150) == ([(4.0, 4.0)], True)


@pytest.mark.parametrize("put", [load, write, point])
def test_a_model_that_is_put_back(put: Put) -> None:
    """Always, or at times."""
    assert run(put, restores=5) == ([], True)
    assert run(put, restores=2) == ([(2.0, 4.0)], True)


@pytest.mark.parametrize("steps", [12, 150])  # in long runs not every step is seen
def test_averages_that_are_no_such(steps: int) -> None:
    """Plain copies, now and then or always, and weights that move at an evaluation alone."""
    assert run(pull=1.0, steps=steps) == ([], False)
    assert run(pull=1.0, every=steps, swaps=False, steps=steps) == ([], False)
    assert run(pull=1.0, every=3, swaps=False, steps=steps) == ([], False)
    assert run(pull=0.5, every=steps, steps=steps) == ([], False)
    assert run(pull=0.5, every=3, goes_on=True, swaps=False, steps=steps) == ([], False)
    assert run(swaps=False, steps=steps) == ([], False)


def test_an_average_that_has_only_begun() -> None:
    """Few moves tell nothing of its pace."""
    assert run(steps=3, epochs=3) == ([], False)


def test_an_average_that_is_given_up_is_let_go() -> None:
    """Nobody keeps its tensors to the end of the run."""
    with Recorder("x") as recorder:
        model: Any = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        weight = weakref.ref(shadow["0.weight"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(40):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            if step < 20:
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        shadow[name].lerp_(p, 0.2)
            elif step == 20:
                assert recorder.watcher(SwappedAverages)._known
                shadow = {}
        assert weight() is None
