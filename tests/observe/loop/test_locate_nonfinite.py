"""Which tensors are found inside what a model is given, or returns."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from trainguard.observe.loop.locate_nonfinite import tensors_in

ONE, TWO = torch.zeros(2), torch.ones(3)


@dataclass
class Plain:
    """A batch of two tensors."""

    x: Any
    y: Any


@dataclass(slots=True, frozen=True)
class Slots:
    """The same, without a dict of its own."""

    x: Any
    y: Any


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "made",
    [
        (ONE, TWO),
        [ONE, [TWO, "a"], 3],
        {"x": ONE, "y": {"z": TWO}},
        Pair(ONE, TWO),
        Plain(ONE, TWO),
        Slots(ONE, TWO),
        Slots(Plain(ONE, None), (TWO,)),
    ],
)
def test_tensors_at_every_depth(made: Any) -> None:
    """In containers of Python's, named or not, and in what is declared with fields."""
    assert [id(tensor) for tensor in tensors_in(made)] == [id(ONE), id(TWO)]
