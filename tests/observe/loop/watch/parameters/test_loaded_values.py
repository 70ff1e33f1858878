"""What becomes of loaded values before the first pass."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def make() -> nn.Sequential:
    """Return a small model."""
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 3))


def reset(module: nn.Module) -> None:
    """Draw the weights of a layer."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.1)
        nn.init.zeros_(module.bias)


def found(change: Callable[[nn.Sequential], object]) -> list[tuple[float, float]]:
    """Load a state, change the model, and train it; return what is told of the load."""
    torch.manual_seed(0)
    state = make().state_dict()
    with Recorder("x") as recorder:
        model = make()
        model.load_state_dict(state)
        change(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            inputs = torch.randn(8, 6, dtype=next(model.parameters()).dtype)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "load lost"]
    return [(probe.measured, probe.reference) for probe in probes]


def test_weights_that_are_drawn_anew() -> None:
    """All of them, most of them, or the head alone."""
    assert found(lambda model: model.apply(reset)) == [(3.0, 3.0)]
    assert found(lambda model: model[:3].apply(reset)) == [(2.0, 3.0)]
    assert found(lambda model: model[3:].apply(reset)) == []


@torch.no_grad()
def mix(model: nn.Sequential, share: float) -> None:
    """Put other weights in the place of a share of each."""
    for p in model.parameters():
        p.lerp_(torch.randn_like(p) * p.std().nan_to_num(), share)


@torch.no_grad()
def prune(model: nn.Sequential) -> None:
    """Leave half of the weights."""
    for p in model.parameters():
        p.mul_(torch.rand_like(p) < 0.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: None,
        lambda model: mix(model, 0.3),
        prune,
        lambda model: model.double(),
        lambda model: model.bfloat16(),
        lambda model: model.load_state_dict(make().state_dict()),
    ],
    ids=["nothing", "noise", "pruned", "double", "half", "loaded again"],
)
def test_weights_that_are_still_those_that_were_loaded(change: Callable) -> None:
    """However they were changed, or where another state came after the first."""
    assert found(change) == []


def test_a_model_that_moves_after_its_load() -> None:
    """To memory without values, and back with others: nothing is compared on the way."""

    def move(model: nn.Sequential) -> None:
        model.to("meta").to_empty(device="cpu").apply(reset)

    assert found(move) in ([], [(3.0, 3.0)])
