"""What is seen of the user's own losses, models and schedules, and what ranges cannot describe."""

import sys

import pytest
import torch
from torch import nn

from trainguard.events.component import Component
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.seen_inputs import SeenInputs


class Net(nn.Module):
    """A model with a setting."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return two numbers for each row."""
        return self.layers(rows)


def distance(prediction: torch.Tensor, target: torch.Tensor, power: float = 2.0) -> torch.Tensor:
    """Return a loss."""
    return (prediction - target).abs().pow(power).mean()


def spread(prediction: torch.Tensor) -> torch.Tensor:
    """Return what a training makes larger."""
    return prediction.std()


def error(prediction: torch.Tensor) -> torch.Tensor:
    """Return a number from which no backward comes."""
    return prediction.abs().mean()


def divergence(probabilities: torch.Tensor) -> torch.Tensor:
    """Return a loss of rows that sum to one."""
    return (probabilities * probabilities.log()).sum(1).mean()


def make_schedule(optimizer: torch.optim.Optimizer, warmup: int) -> object:
    """Return a warmup."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / warmup))


def train() -> None:
    """Train with all of these."""
    torch.manual_seed(0)
    net = Net(width=5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = make_schedule(optimizer, warmup=3)
    for _ in range(6):
        output = net(torch.randn(8, 3))
        loss = distance(output, torch.zeros(8, 2), power=1.0) - 0.01 * spread(output)
        loss = loss + divergence(output.softmax(1))
        error(output)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def recorded(components: bool) -> dict[str, Component]:
    """Return what was seen of each component."""
    with Recorder("x", probe=False, components=components) as recorder:
        train()
    return {event.name: event for event in recorder.trace if isinstance(event, Component)}


def test_what_a_training_is_made_of() -> None:
    """A loss is what is made smaller; its inputs, and what built the others, are told."""
    seen = recorded(components=True)
    assert set(seen) == {"distance", "divergence", "Net", "make_schedule"}
    assert seen["Net"].arguments == (("width", "5"),)
    assert (seen["make_schedule"].arguments, seen["make_schedule"].rate) == (
        (("warmup", "3"),),
        0.1,
    )
    prediction, target, power = seen["distance"].inputs
    assert (prediction[:3], prediction[5]) == (("prediction", "real", "B 2"), True)
    assert target == ("target", "choice", "B 2", 0.0, 0.0, False, "0.0")
    assert power[1::5] == ("value", "1.0")
    assert seen["distance"].sizes == (("B", 8, 8),)
    assert "one sum" in seen["divergence"].obstacle
    assert {each.obstacle for name, each in seen.items() if name != "divergence"} == {""}


def test_other_recordings_are_not_told_of_calls() -> None:
    """It is only done where it is asked for, and is over with the recording."""
    assert recorded(components=False) == {}
    recorded(components=True)
    assert sys.getprofile() is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (torch.randn(16, 5).softmax(1), "one sum"),
        (torch.randn(16, 5).log_softmax(1), "one sum"),
        (nn.functional.normalize(torch.randn(16, 5)), "one sum"),
        (torch.randn(16, 2).sort().values, "in order"),
        (torch.full((4, 2), torch.inf), "finite"),
        (torch.zeros(2, 5000), "elements"),
        (torch.zeros(2, dtype=torch.complex64), "looked at"),
        ({"x": object()}, "is a dict"),
        (torch.randn(16, 5), ""),
        (torch.tensor([[0.0, 10.0]] * 32) + torch.rand(32, 2), ""),
        (torch.randn(16), ""),
    ],
)
def test_what_a_range_does_not_say(given: object, told: str) -> None:
    """Rows that obey a law are not declared by a range, which would break it."""
    seen = SeenInputs()
    seen.add({"x": given})
    obstacle = seen.find_obstacle()
    assert told in obstacle
    assert bool(told) == bool(obstacle)


def test_dimensions_and_kinds() -> None:
    """The batch and what varies have names, which those of one size share; the rest is fixed."""
    seen = SeenInputs()
    for batch, length in ((6, 4), (3, 9)):
        kept = torch.arange(length) < torch.tensor([[2], [length], *[[1]] * (batch - 2)])
        seen.add(
            {
                "x": torch.linspace(-0.123, 7.77, batch * length * 3).view(batch, length, 3),
                "kept": kept,
                "label": torch.arange(batch),
                "sign": torch.tensor([-1.0, 1.0, 1.0]),
            }
        )
    x, kept, label, sign = seen.describe()
    assert x == ("x", "real", "B T 3", -0.13, 7.8, False, "")
    assert kept == ("kept", "mask", "B T", 0.0, 1.0, False, "False, True")
    assert label == ("label", "integer", "B", 0.0, 5.0, False, "")
    assert sign == ("sign", "choice", "3", -1.0, 1.0, False, "-1.0, 1.0")
    assert seen.sizes() == (("B", 3, 6), ("T", 4, 9))
