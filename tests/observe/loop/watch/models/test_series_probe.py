"""What the next value of a series is predicted from."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

LENGTH = 20


class Convolved(nn.Module):
    """Convolutions over series (N, T), padded on one side or on both, with or without a norm."""

    def __init__(self, norm: Callable[[], nn.Module] = nn.Identity, left: int = 2) -> None:
        super().__init__()
        self.first, self.last, self.left = nn.Conv1d(1, 8, 3), nn.Conv1d(8, 1, 1), left
        self.norm = norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a value (N, T) for each step in time."""
        padded = F.pad(x[:, None], (self.left, 2 - self.left))
        return self.last(self.norm(self.first(padded)).relu())[:, 0]


class StepNorm(nn.Module):
    """A norm over the features of each step in time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise features (N, 8, T)."""
        return self.norm(x.mT).mT


class Recurrent(nn.Module):
    """A recurrent layer over series (N, T)."""

    def __init__(self, both: bool = False) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 8, batch_first=True, bidirectional=both)
        self.head = nn.Linear(8 * (1 + both), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a value (N, T) for each step in time."""
        return self.head(self.rnn(x[..., None])[0])[..., 0]


def told(model: nn.Module, cut: Callable | None = None, function: Callable = F.mse_loss) -> bool:
    """Train on the next values of series; say whether a later value is seen by an earlier one."""
    torch.manual_seed(0)
    series = torch.randn(16, LENGTH + 1).cumsum(1)
    cut = cut or (lambda s: (s[:, :-1], s[:, 1:]))
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            inputs, targets = cut(series)
            optimizer.zero_grad()
            function(model(inputs)[:, -targets.shape[1] :], targets).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "future"]
    assert all(probe.label.startswith("next value, ") for probe in probes)
    return bool(probes)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Convolved, False),
        (lambda: Convolved(StepNorm), False),
        (lambda: Convolved(lambda: nn.GroupNorm(1, 8)), True),
        (lambda: Convolved(lambda: nn.InstanceNorm1d(8)), True),
        (lambda: Convolved(lambda: nn.BatchNorm1d(8)), False),
        (lambda: Convolved(left=1), True),
        (Recurrent, False),
        (lambda: Recurrent(both=True), True),
        (lambda: nn.Linear(LENGTH, LENGTH), True),
        (lambda: nn.Sequential(Convolved(), nn.Dropout(0.5)), False),
    ],
    ids=[
        *("causal", "norm of steps", "group norm", "instance norm", "batch norm", "padded on both"),
        *("recurrent", "both ways", "linear", "dropout"),
    ],
)
def test_models_that_read_forwards(make: Callable[[], nn.Module], expected: bool) -> None:
    """Known of each layer by what its output changes with."""
    assert told(make()) == expected


@pytest.mark.parametrize("function", [F.l1_loss, F.smooth_l1_loss, F.huber_loss])
def test_other_distances(function: Callable) -> None:
    """Those of torch."""
    assert told(Recurrent(both=True), function=function)


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (lambda s: (s[:, :-1], s[:, 6:]), True),
        (lambda s: (s[:, :-1], s[:, :-1]), False),
        (lambda s: (s[:, :-1], s[:, 1:].sin()), False),
        (lambda s: (s[:, :-1], s[:, :-1].roll(-1, 1)), False),
        (lambda s: (torch.zeros_like(s[:, 1:]), torch.zeros_like(s[:, 1:])), False),
    ],
    ids=["its end alone", "itself", "something else", "a ring", "a constant"],
)
def test_other_targets(cut: Callable, expected: bool) -> None:
    """Only what follows in the same series is foretold."""
    assert told(Recurrent(both=True), cut) == expected


def test_several_features_along_either_axis() -> None:
    """(N, T, D) and (N, D, T)."""

    class Mixed(nn.Module):
        """A convolution over (N, 2, T)."""

        def __init__(self, left: int) -> None:
            super().__init__()
            self.conv, self.left = nn.Conv1d(2, 2, 3), left

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return (N, 2, T)."""
            return self.conv(F.pad(x, (self.left, 2 - self.left)))

    for left in (1, 2):
        model = Mixed(left)
        series = torch.randn(8, 2, LENGTH + 1).cumsum(2)
        with Recorder("x") as recorder:
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for _ in range(4):
                optimizer.zero_grad()
                F.mse_loss(model(series[..., :-1]), series[..., 1:]).backward()
                optimizer.step()
        probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "future"]
        assert len(probes) == (left == 1)
