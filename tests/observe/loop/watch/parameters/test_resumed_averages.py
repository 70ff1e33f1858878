"""Averages that a training goes on with, or begins anew, beside a file that has them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder

Saved = dict[str, Any]


def steps(
    model: nn.Module, average: Any, optimizer: torch.optim.Optimizer, decay: float, count: int = 12
) -> None:
    """Make some steps, and let an average follow: a module, or a dict of tensors."""
    for _ in range(count):
        x = torch.randn(16, 6)
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            own = average if isinstance(average, dict) else dict(average.named_parameters())
            for name, parameter in model.named_parameters():
                own[name].lerp_(parameter, 1 - decay)


def build(rate: float, shadow: bool) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    """Return a model, its average, and an optimizer."""
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
    model.register_buffer("mask", torch.ones(3, 3), persistent=False)
    named = model.named_parameters()
    average = {n: p.detach().clone() for n, p in named} if shadow else copy.deepcopy(model)
    return model, average, torch.optim.Adam(model.parameters(), lr=rate)


def put_back(average: Any, state: Saved) -> None:
    """Load the state of an average."""
    if isinstance(average, dict):
        for name, value in state.items():
            average[name].copy_(value)
    else:
        average.load_state_dict(state)


def resumed(
    folder: Path,
    load: Callable[[nn.Module, Any, torch.optim.Optimizer, Saved], object],
    *,
    key: str = "ema",
    decay: float = 0.97,
    rate: float = 2e-3,
    shadow: bool = False,
) -> list[str]:
    """Train, save, and go on from the file; return what is told of averages."""
    torch.manual_seed(0)
    model, average, optimizer = build(rate, shadow)
    steps(model, average, optimizer, decay, 150)
    kept = average if shadow else average.state_dict()
    states = {"model": model.state_dict(), key: kept, "optimizer": optimizer.state_dict()}
    states[f"{key}_of_another"] = {n: 1 - 9 * p for n, p in model.state_dict().items()}
    torch.save({"states": states, "epoch": 1}, folder / "last.pt")
    recorder = Recorder("train")
    with recorder:
        torch.manual_seed(0)
        model, average, optimizer = build(rate, shadow)
        load(model, average, optimizer, torch.load(folder / "last.pt")["states"])
        steps(model, average, optimizer, decay)
    assert "faults" not in recorder.trace.conditions
    return [e.label for e in recorder.trace if getattr(e, "probe", "") == "resumed average"]


def load_weights(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Saved) -> None:
    """Load the weights and the optimizer."""
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("decay", [0.3, 0.7, 0.95, 0.98])
def test_an_average_that_is_left_in_the_file(tmp_path: Path, shadow: bool, decay: float) -> None:
    """It begins with what was drawn anew, or with the weights of the file."""

    def forget(model: nn.Module, _: Any, optimizer: Any, saved: Saved) -> None:
        """Load all but the average."""
        load_weights(model, optimizer, saved)

    def copy_weights(model: nn.Module, average: Any, optimizer: Any, saved: Saved) -> None:
        """Make the average of the weights."""
        load_weights(model, optimizer, saved)
        put_back(average, saved["model"])

    def load(model: nn.Module, average: Any, optimizer: Any, saved: Saved) -> None:
        """Load all."""
        load_weights(model, optimizer, saved)
        put_back(average, saved["ema"])

    for wrong in (forget, copy_weights):
        told = resumed(tmp_path, wrong, shadow=shadow, decay=decay)
        # Of a dict it is known after two steps only, when a fast one is where it should be.
        fast = shadow and decay < 0.9
        assert [label.partition("\n")[0] for label in told] == ["states.ema"] or fast
    assert resumed(tmp_path, load, shadow=shadow, decay=decay) == []


def test_what_is_no_resumed_training(tmp_path: Path) -> None:
    """A fresh optimizer, weights of the average itself, other names, and steps that go far."""

    def tune(model: nn.Module, _: Any, optimizer: Any, saved: Saved) -> None:
        """Begin with the weights alone."""
        model.load_state_dict(saved["model"])

    def begin_with_average(model: nn.Module, _: Any, optimizer: Any, saved: Saved) -> None:
        """Begin with the average as the weights."""
        load_weights(model, optimizer, {**saved, "model": saved["ema"]})

    def forget(model: nn.Module, _: Any, optimizer: Any, saved: Saved) -> None:
        """Load all but the average."""
        load_weights(model, optimizer, saved)

    def alter(model: nn.Module, _: Any, optimizer: Any, saved: Saved) -> None:
        """Load all but the average, and draw a layer anew."""
        load_weights(model, optimizer, saved)
        model[0].reset_parameters()

    assert resumed(tmp_path, alter) == []
    assert resumed(tmp_path, tune) == []
    assert resumed(tmp_path, begin_with_average) == []
    assert resumed(tmp_path, forget, key="before") == []
    assert resumed(tmp_path, forget, rate=3.0, decay=0.2, shadow=True) == []
