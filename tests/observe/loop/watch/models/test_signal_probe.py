"""What becomes of the input from layer to layer, in models that do not learn."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Act = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """Three layers, and a function after the first two."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of four classes."""
        x = self.act(self.first(x))
        x = self.act(self.second(x))
        return self.last(x)


def draw_large(net: nn.Module) -> None:
    """Draw weights a hundred times too large."""
    for layer in (net.first, net.second, net.last):
        nn.init.normal_(layer.weight, std=20)


def signals(net: nn.Module, learns: bool = False, steps: int = 60) -> list[Probe]:
    """Train a model, at far too low a rate if it is not to learn; return what is told."""
    with Recorder("x") as recorder:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2 if learns else 1e-7)
        for _ in range(steps):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            functional.cross_entropy(net(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe.startswith("signal")]


def test_a_softmax_between_layers() -> None:
    """What differs between samples is lost there; the line before it is named."""
    torch.manual_seed(0)
    (probe,) = signals(Net(lambda x: x.softmax(1)))
    assert probe.probe == "signal lost"
    assert probe.label == "`Net.second` and `Net.last`, where softmax is"
    assert probe.measured < 0.01 * probe.reference
    assert "test_signal_probe.py:27" in probe.source


def test_weights_that_are_far_too_large() -> None:
    """Numbers grow; the line that has drawn the weights is named."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:  # weights are drawn in the recording, as in a script
        net = Net(torch.relu)
        draw_large(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-7)
        for _ in range(60):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            functional.cross_entropy(net(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
    (probe,) = [e for e in recorder.trace if getattr(e, "probe", "").startswith("signal")]
    assert (probe.probe, probe.label) == ("signal grown", "`Net.first` to `Net.last`")
    assert probe.measured > 1e5
    assert "test_signal_probe.py:34" in probe.source


@pytest.mark.parametrize("act", [torch.relu, torch.tanh, functional.gelu])
def test_a_usual_model_that_does_not_learn(act: Act) -> None:
    """Nothing is lost on the way: the rate is at fault."""
    torch.manual_seed(0)
    assert signals(Net(act)) == []


def test_a_model_that_learns_is_not_asked() -> None:
    """Nor one that has had no time to."""
    torch.manual_seed(0)
    odd = Net(lambda x: x + 1e4)
    assert signals(odd, learns=False, steps=20) == []
    assert signals(Net(torch.relu), learns=True) == []
