"""Recurrent states that go on with other samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Net(nn.Module):
    """A recurrent layer, and numbers from what it returns."""

    def __init__(self, kind: type = nn.GRU) -> None:
        super().__init__()
        self.rnn, self.head = kind(2, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, state: object = None) -> object:
        """Return numbers (N, T) and the next state."""
        out, state = self.rnn(x, tuple(state) if isinstance(state, list) else state)
        kept = state.detach() if isinstance(state, torch.Tensor) else [s.detach() for s in state]
        return self.head(out)[..., 0], kept


class Kept(nn.Module):
    """A recurrent layer that keeps its state from pass to pass."""

    def __init__(self, kind: type, anew: bool) -> None:
        super().__init__()
        self.rnn, self.head = kind(2, 6, num_layers=2, batch_first=True), nn.Linear(6, 1)
        self.hidden, self.anew = None, anew

    def forward(self, x: torch.Tensor, _: object = None) -> object:
        """Return numbers (N, T)."""
        begin = None if self.anew else self.hidden
        out, state = self.rnn(x, tuple(begin) if isinstance(begin, list) else begin)
        self.hidden = (
            state.detach() if isinstance(state, torch.Tensor) else [s.detach() for s in state]
        )
        return self.head(out)[..., 0], None


def found(
    carry: Callable = lambda state: state,
    *,
    shuffle: bool = True,
    chunks: int = 1,
    kind: type = nn.GRU,
    model: nn.Module | None = None,
    whole: bool = False,
) -> list[tuple[float, float]]:
    """Train with some way of carrying states on; return what is told of it."""
    torch.manual_seed(0)
    model, state = model or Net(kind), None
    data: Any = TensorDataset(torch.randn(64, 12, 2), torch.randn(64, 12))
    if whole:  # the data set has batches, which the loader draws
        data = list(DataLoader(data, batch_size=8))
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in DataLoader(data, batch_size=None if whole else 8, shuffle=shuffle):
            state = None if chunks > 1 else state
            for part, wanted in zip(x.chunk(chunks, 1), y.chunk(chunks, 1), strict=True):
                numbers, state = model(part, carry(state))
                optimizer.zero_grad()
                (numbers - wanted).square().mean().backward()
                optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "carried"]
    return [(probe.measured, probe.reference) for probe in probes]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_states_of_other_samples(kind: type) -> None:
    """Each pass but the first begins with that of the batch before."""
    assert found(lambda state: state, kind=kind) == [(7.0, 7.0)]


def test_batches_that_are_drawn_as_a_whole() -> None:
    """A stretch of series comes after any other one; in order it goes on."""
    assert found(whole=True) == [(7.0, 7.0)]
    assert found(whole=True, shuffle=False) == []


def test_states_that_are_copied() -> None:
    """It is their values that are known."""
    assert found(lambda state: None if state is None else state.clone()) == [(7.0, 7.0)]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_states_that_a_module_keeps(kind: type) -> None:
    """They are known where it begins with them, and not where it only shows them."""
    assert found(model=Kept(kind, anew=False)) == [(7.0, 7.0)]
    assert found(model=Kept(kind, anew=True)) == []
    assert found(model=Kept(kind, anew=False), shuffle=False) == []


def test_a_state_that_is_handed_through() -> None:
    """One that is the same for all batches was read of none."""

    class Through(Net):
        """Returns the state that it was given."""

        def forward(self, x: torch.Tensor, state: object = None) -> object:
            """Return numbers and that state."""
            return super().forward(x, state)[0], state

    begin = torch.ones(1, 8, 6)
    assert found(lambda state: begin, model=Through()) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (lambda step: torch.randperm(64)[:8], [(7.0, 7.0)]),
        (lambda step: torch.tensor([3, 1, 7, 5, 0, 2, 6, 4]) * 8 + step, []),  # each row goes on
        (lambda step: torch.arange(8 * step, 8 * step + 8), []),
        (lambda step: torch.tensor([3, 1, 7, 5, 0, 2, 6, 4]), []),
    ],
    ids=["drawn", "streams", "in order", "the same"],
)
def test_rows_that_a_script_draws(rows: Callable[[int], torch.Tensor], expected: list) -> None:
    """From a table, by indices that it has in a variable."""
    torch.manual_seed(0)
    model, state = Net(), None
    x, y = torch.randn(64, 12, 2), torch.randn(64, 12)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(8):
            chosen = rows(step)
            numbers, state = model(x[chosen], state)
            optimizer.zero_grad()
            (numbers - y[chosen]).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "carried"]
    assert [(probe.measured, probe.reference) for probe in probes] == expected


@pytest.mark.parametrize(
    ("carry", "options"),
    [
        (lambda state: None, {}),
        (lambda state: torch.zeros(1, 8, 6), {}),
        (lambda state: None if state is None else torch.zeros_like(state), {}),
        (lambda state: state, {"shuffle": False}),
        (lambda state: state, {"chunks": 3}),
    ],
    ids=["none", "zeros", "zeros like it", "in order", "chunks of a batch"],
)
def test_states_that_are_their_own(carry: Callable, options: dict) -> None:
    """Fresh ones, those of streams, and those of the same batch."""
    assert found(carry, **options) == []
