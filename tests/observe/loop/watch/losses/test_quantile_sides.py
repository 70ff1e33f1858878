"""Columns that learn quantiles: whether each learns its own."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def learn(lists: dict[str, Any], loss: Loss) -> tuple[list[Probe], bool]:
    """Learn columns with the first list, among variables; return what was found, and if any."""
    wanted = torch.as_tensor(next(iter(lists.values())))
    settings = SimpleNamespace(**lists)
    model = nn.Linear(3, wanted.numel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(12):
            output = model(torch.randn(40, 3))
            optimizer.zero_grad()
            loss(output, torch.randn(40, 1), wanted.reshape(-1)).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    del settings
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "quantile side"]
    return found, "quantile side" in recorder.trace.conditions["looked"]


def pinball(error: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """Return the loss of errors that are targets less predictions."""
    return torch.maximum(quantiles * error, (quantiles - 1) * error)


def right(output: torch.Tensor, target: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """Return the loss as it should be."""
    return pinball(target - output, quantiles).mean()


def wrong(output: torch.Tensor, target: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """Return that of errors with the other sign."""
    return pinball(output - target, quantiles).mean()


def masked(output: torch.Tensor, target: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """Return such a loss that leaves some samples out."""
    return (pinball(output - target, quantiles) * (torch.rand(40, 1) > 0.2)).sum()


def mostly(output: torch.Tensor, target: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """Return what pulls two rows to the opposite, and all others otherwise."""
    pull = torch.stack([quantiles - 1, quantiles, *[3 * quantiles] * 38])
    return (output * pull).sum()


THREE = [0.1, 0.5, 0.9]


@pytest.mark.parametrize("loss", [wrong, masked])
@pytest.mark.parametrize(
    "lists",
    [
        {"quantiles": THREE},
        {"QS": (0.5, 0.75, 0.9)},
        {"tau_hats": torch.tensor([[0.05, 0.25, 0.5, 0.95]])},
        {"my_quantiles": [0.9, 0.1]},
    ],
)
def test_the_opposite(lists: dict[str, Any], loss: Loss) -> None:
    """Of lists, tuples and tensors, in any order."""
    ((probe,), looked) = learn(lists, loss)
    ((name, numbers),) = lists.items()
    flat = torch.as_tensor(numbers).flatten().tolist()
    place = 1 if flat[0] == 0.5 else 0
    assert probe.label == f"{name} {place}"
    assert probe.measured == pytest.approx(1 - flat[place])
    assert (probe.reference, probe.step) == (pytest.approx(flat[place]), len(flat))
    assert looked


@pytest.mark.parametrize("numbers", [THREE, [0.9, 0.5, 0.1], [0.5, 0.75, 0.9]])
def test_the_right_side(numbers: list[float]) -> None:
    """There was something to judge."""
    assert learn({"quantiles": numbers}, right) == ([], True)


@pytest.mark.parametrize(
    ("lists", "loss"),
    [
        ({"constants": THREE}, wrong),
        ({"quantiles": [0.5, 0.4999]}, wrong),
        ({"taus": THREE}, lambda output, target, _: (output - target).abs().mean()),
        ({"taus": THREE}, lambda output, target, _: (output - target).square().mean()),
        ({"taus": THREE}, mostly),
        ({"learned": [0.2, 0.3, 0.6], "quantiles": [0.1, 0.3, 0.9]}, wrong),
    ],
    ids=["another name", "the middle", "a median", "a mean", "a few rows", "others"],
)
def test_other_lists_are_fine(lists: dict[str, Any], loss: Loss) -> None:
    """Numbers of another name, and losses that have no sides."""
    assert learn(lists, loss) == ([], False)


def test_one_quantile_is_left_alone() -> None:
    """It may be the other end on purpose."""
    assert learn({"quantile": [0.1]}, wrong) == ([], False)
