"""Layers that a module makes and never uses, and those that only seem to be so."""

import pytest
import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.class_code import code_of_class


class Base(nn.Module):
    """Two layers, of which one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass both."""
        return self.last(torch.relu(self.first(x)))


class Switched(Base):
    """One that uses its norm where it is told to."""

    normalises = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass both, and the norm now and then."""
        hidden = torch.relu(self.first(x))
        return self.last(self.norm(hidden) if self.normalises else hidden)


class Inside(Base):
    """One that names its norm in a function inside of a property."""

    @property
    def used(self):
        """Return what would use it."""
        return lambda x: self.last(self.norm(x))


class Named(Base):
    """One that may use any of its layers."""

    def pick(self, name: str) -> nn.Module:
        """Return a layer."""
        return getattr(self, name)


class Weighed(Base):
    """One that uses the weights of its norm alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by them."""
        return self.last(torch.relu(self.first(x)) * self.norm.weight)


class Torchs(nn.TransformerEncoderLayer):
    """A layer of torch's with another of the user's."""

    def __init__(self) -> None:
        super().__init__(4, 2, 8, batch_first=True)
        self.extra = nn.Linear(4, 4)


class Frozen(Base):
    """One whose norm is not to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.requires_grad_(False)


class Computed(Base):
    """One that calls none of its layers, and computes with their weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weights of two."""
        hidden = nn.functional.linear(x, self.first.weight).relu()
        return nn.functional.linear(hidden, self.last.weight)


class Shelf(nn.Module):
    """Layers for somebody else to call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)


class Held(nn.Module):
    """One that calls what it finds on a shelf."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf, self.last = Shelf(), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass one of them."""
        return self.last(self.shelf.inner(x))


class Nested(nn.Module):
    """One that has the forgetful one twice inside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Base(), Base()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add up."""
        return sum(block(x) for block in self.blocks)


CASES = {
    Base: ["Base.norm\nBase"],
    Nested: ["Nested.blocks.0.norm\nBase"],
    Switched: [],
    Inside: [],
    Named: [],
    Weighed: [],
    Torchs: [],
    Frozen: [],
    Computed: [],
    Held: [],
}


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_layers_that_nothing_uses(kind: type[nn.Module]) -> None:
    """They are named by their module; what some line may use is left alone."""
    recorder = Recorder("train")
    with recorder:
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            x = torch.randn(5, 3, 4) if kind is Torchs else torch.randn(5, 4)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert "faults" not in recorder.trace.conditions
    found = [e.label for e in recorder.trace if getattr(e, "probe", "") == "forgotten"]
    assert found == CASES[kind]


def test_the_code_of_a_class() -> None:
    """Properties and what is decorated count, what is inherited does not."""
    assert {name for name, _ in code_of_class(Inside)} == {"used"}
    assert {name for name, _ in code_of_class(Base)} == {"__init__", "forward"}
