"""What the probe of evaluation mode finds in real models."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainguard as tg
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass
from trainguard.observe.model.observer import observe

X = tg.real("B 4", -1, 1)


class Net(nn.Module):
    """A linear layer with a buffer, of which subclasses do something with the output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", None, persistent=False)
        self.state: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return what the subclass makes of the output."""
        return self.after(self.linear(x), x)

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Return the output as it is."""
        return y


def passes(kind: type[nn.Module]) -> dict[str, list[Pass]]:
    """Observe a model, and return by quantity what is not as it should be."""
    trace = observe(tg.Model(kind, x=X), "cpu", "float32", Settings(profile="quick")).trace(
        "evaluation"
    )
    found: dict[str, list[Pass]] = {}
    for seen in trace:
        if seen.measured:
            found.setdefault(seen.quantity, []).append(seen)
    return found


class Plain(Net):
    """A model that repeats itself and changes nothing."""


class Lazy(Net):
    """A model that fills a cache at its first call."""

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        """Multiply with a table that is made once."""
        if self.cache is None:
            self.cache = torch.arange(x.shape[1]).to(x)
        return y * self.cache


class Scratch(Net):
    """A model that keeps its last output for whoever wants to look at it."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Keep the output."""
        self.cache = self.state = y.detach()
        return y


class Modes(Net):
    """A model whose randomness and statistics ask for the mode."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Drop and average in training only."""
        if self.training:
            self.mean.lerp_(y.detach().mean(0), 0.1)
            self.calls += 1
        return functional.dropout(y - self.mean, 0.5, self.training)


class Renormed(Net):
    """A model with an embedding that limits its norm whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4, max_norm=0.5)

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        """Add rows of the table."""
        return y + self.table((x[:, 0] * 8 + 8).long().clamp(0, 15))


@pytest.mark.parametrize("kind", [Plain, Lazy, Scratch, Modes, Renormed])
def test_what_leaves_all_as_it_was(kind: type[nn.Module]) -> None:
    """Caches, statistics of training and norms that are kept are no change."""
    assert passes(kind) == {}


class Functional(Net):
    """Dropout that does not know of modes."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Drop."""
        noisy = y + torch.randn_like(y)
        return functional.dropout(noisy, 0.5)


class Sampled(Net):
    """A latent that is drawn."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Draw around the output."""
        return torch.normal(y, 1.0)


class Foreign(Net):
    """Numbers drawn by Python and NumPy."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Scale the output."""
        return y * random.random() * float(np.random.rand())


@pytest.mark.parametrize(
    ("kind", "function"), [(Functional, "dropout"), (Sampled, "normal"), (Foreign, "")]
)
def test_an_output_that_differs(kind: type[nn.Module], function: str) -> None:
    """The function that drew is told with the line of the user's code, dropout before others."""
    found = passes(kind)
    (seen,) = found["repeat"]
    assert set(found) == {"repeat"}
    assert (seen.place, seen.detail) == ("output", function)
    if function:
        file, line = seen.source.rsplit(":", 1)
        assert file == __file__
        assert function in Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


class Learns(Net):
    """Statistics that follow whatever they are shown."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Move the mean."""
        self.mean.lerp_(y.mean(0), 0.1)
        return y


class Counts(Net):
    """A count of all calls."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Count."""
        self.calls += 1
        return y


class Weights(Net):
    """A weight that decays with each call."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Decay the weight."""
        self.linear.weight.data.mul_(0.9)
        return y


class Wakes(Net):
    """A layer that is put into training mode."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Wake the layer."""
        self.linear.train()
        return y


class Edits(Net):
    """An input that is edited in place."""

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        """Edit."""
        x.add_(1.0)
        return y


class Seeds(Net):
    """A seed that is set again in each call."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Seed."""
        torch.manual_seed(0)
        return y + torch.rand(4)


class Carries(Net):
    """A state that goes from call to call."""

    def after(self, y: Tensor, _x: Tensor) -> Tensor:
        """Add the last output."""
        self.state = 0.5 * self.state + y
        return self.state


@pytest.mark.parametrize(
    ("kind", "quantity", "place"),
    [
        (Learns, "buffer", "mean"),
        (Counts, "counter", "calls"),
        (Weights, "parameter", "linear.weight"),
        (Wakes, "mode", "linear"),
        (Edits, "input", "x"),
        (Seeds, "reseeded", ""),
        (Carries, "carried", "output"),
    ],
)
def test_what_a_call_changes(kind: type[nn.Module], quantity: str, place: str) -> None:
    """Each kind of change has its own event."""
    found = passes(kind)
    assert [seen.place for seen in found[quantity]] == [place]
    assert set(found) <= {quantity, "carried"}
