"""What is found in the objects around a loader, and what makes two things alike."""

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch

from trainguard.observe.loader.fingerprints import likeness
from trainguard.observe.loader.reachable_state import (
    generators,
    named_arrays,
    put_back,
    state_of,
    streams,
)

KINDS = {
    "Generator": lambda: np.random.default_rng(0),
    "RandomState": lambda: np.random.RandomState(0),
    "Random": lambda: random.Random(0),
    "torch": lambda: torch.Generator().manual_seed(0),
}


def drawn(generator) -> float:
    """Draw a number from a generator of any kind."""
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item()
    return float(generator.random() if hasattr(generator, "random") else generator.rand())


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_is_put_back(kind: str) -> None:
    """It draws again what it drew."""
    generator = KINDS[kind]()
    state = state_of(generator)
    first = drawn(generator)
    put_back(generator, state)
    assert drawn(generator) == first


class Holder:
    """Holds a thing as an attribute."""

    def __init__(self, rng) -> None:
        self.rng = rng

    def method(self) -> None:
        """Do nothing."""


def closed_over(rng):
    """Return a function that knows a thing."""
    return lambda: rng


class Refusing(Mapping):
    """A mapping of the user's that holds a thing, and whose elements cannot be had."""

    def __init__(self, rng) -> None:
        self.rng = rng

    def __getitem__(self, key):
        """Refuse, as a configuration does of which a value is missing."""
        raise RuntimeError(key)

    def __iter__(self):
        """Name an element."""
        return iter(["missing"])

    def __len__(self) -> int:
        """Return how many elements there are."""
        return 1


WAYS = {
    "mapping of the user's": Refusing,
    "proxy": lambda rng: MappingProxyType({"rng": rng}),
    "attribute": Holder,
    "list": lambda rng: [1, [rng]],
    "mapping": lambda rng: {"a": {"rng": rng}},
    "closure": closed_over,
    "partial": lambda rng: partial(print, rng),
    "method": lambda rng: Holder(rng).method,
    "default": lambda rng: lambda each=rng: each,
    "nested": lambda rng: Holder(Holder({"x": (Holder(rng),)})),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_is_found_wherever_it_is_held(way: str) -> None:
    """Attributes, containers, closures, defaults and bound methods are followed."""
    rng = random.Random(0)
    assert [each for each in generators(WAYS[way](rng)).values() if each is rng] == [rng]


def test_what_holds_itself_is_gone_through_once() -> None:
    """Objects may go round in circles."""
    circle = Holder(None)
    circle.rng = [circle, random.Random(0)]
    assert len(generators(circle)) == 1


def test_streams_change_when_numbers_are_drawn() -> None:
    """Each of the global generators has a state of its own."""
    before = streams()
    random.random()
    after = streams()
    assert [name for name in before if before[name] != after[name]] == [
        "the global generator of random"
    ]


def test_arrays_are_found_with_their_names() -> None:
    """Words and objects are no arrays."""
    held = Holder({"x": torch.zeros(2), "y": np.zeros(3), "words": np.array(["a"])})
    assert [name for name, _ in named_arrays(held)] == ["x", "y"]


@dataclass
class Pair:
    """Two things of any kind."""

    one: object
    other: object


THINGS = [
    torch.arange(4),
    torch.arange(4).float(),
    torch.arange(4).view(2, 2),
    torch.tensor([0.5, 1.0]).bfloat16(),
    torch.tensor([1 + 2j]).conj(),
    torch.tensor(3),
    torch.zeros(0),
    torch.eye(3).to_sparse(),
    np.arange(4),
    np.float32(1.0),
    np.array([{"a": 1}, None], dtype=object),
    np.arange(100_000),
    np.arange(100_001)[1:] - 1.0,
    "word",
    b"word",
    None,
    1,
    1.0,
    True,
    [1, 2],
    (1, 2),
    {"a": 1},
    {"a": 2},
    {1, 2},
    Pair(1, torch.ones(2)),
    Pair(1, torch.zeros(2)),
    Holder(3),
    Holder(4),
]


def test_different_things_are_not_alike() -> None:
    """Shape, type and contents count."""
    assert len({likeness(thing) for thing in THINGS}) == len(THINGS)


@pytest.mark.parametrize("index", range(len(THINGS)))
def test_equal_things_are_alike(index: int) -> None:
    """A copy is, whatever its address or its strides."""
    assert likeness(THINGS[index]) == likeness(copy.deepcopy(THINGS[index]))


def test_strides_do_not_count() -> None:
    """A transposed view is alike its copy."""
    tensor = torch.rand(3, 4).T
    assert likeness(tensor) == likeness(tensor.contiguous())
    assert likeness(tensor.numpy()) == likeness(tensor.contiguous().numpy())
