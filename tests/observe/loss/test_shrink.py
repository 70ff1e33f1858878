"""The shrinker: numbers become rounder for as long as there is an objection."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Generator

import trainguard as tg
from trainguard.observe.loss.shrink import rounder, shrink
from trainguard.observe.tools.points import Box, Points, draw

numbers = st.floats(-1e6, 1e6)
SIZES = {"B": 1, "T": 3, "K": 2}


def box(**domains: object) -> Box:
    """Return a box of float64 inputs."""
    return Box(domains, SIZES, torch.float64, "cpu")


def digits(value: float) -> int:
    """Return how many signs a number takes to write."""
    return 0 if value == 0 else len(f"{abs(value):.6g}".replace(".0", ""))


@given(numbers, numbers, numbers)
def test_rounder_values(value: float, one: float, other: float) -> None:
    """They are in the range, each takes no more digits than the value, the roundest first."""
    low, high = sorted((one, other))
    found = rounder(value, low, high)
    assert all(low <= v <= high for v in found)
    assert all(digits(v) <= digits(value) for v in found)
    assert [digits(v) for v in found] == sorted(digits(v) for v in found)
    assert len(set(found)) == len(found)
    assert value not in found


@given(numbers)
def test_there_is_an_end(value: float) -> None:
    """Each step goes down in one order, so that no search for rounder numbers goes round."""
    found = rounder(value, -1e6, 1e6)
    assert all((digits(v), abs(v), v < 0) < (digits(value), abs(value), value < 0) for v in found)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_has_rounder_values(value: float) -> None:
    """Nan and infinity are not written with few digits either, and do not stop the search."""
    assert 0.0 in rounder(value, -1, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, []), (0.8731, [0.0, 1.0, 2.0, 0.9, -1.0]), (-7.25, [0.0, 1.0, 2.0, 8.0, -7.0])],
)
def test_people_agree(value: float, expected: list[float]) -> None:
    """Zero, one and few digits come first."""
    found = rounder(value, -8, 8)
    assert set(expected) <= set(found)
    assert found[:1] == expected[:1]


CONDITIONS = {
    "any large": lambda p: (p["x"] > 0.37).flatten(1).any(1),
    "sum": lambda p: p["x"].flatten(1).sum(1) > 1.234,
    "near": lambda p: (p["x"][:, 0, 0] - p["y"][:, 0]).abs() < 0.05,
    "both": lambda p: (p["x"].flatten(1).amin(1) > -0.9) & (p["y"][:, 0] < -0.11),
    "class": lambda p: (p["c"][:, 0] >= 2) & (p["x"][:, 0, 0] > 0.01),
    "bin": lambda p: p["t"][:, 0] > 0.3,
}


@pytest.mark.parametrize("name", CONDITIONS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_objection_is_kept(name: str, seed: int) -> None:
    """What comes out is objected to as before, is inside the domains and is no less round."""
    space = box(
        x=tg.real("T K", -1, 1), y=tg.real("T", -1, 1), c=tg.integer("T", 0, 5),
        t=tg.bins("T", -1, 1, 9), keep=tg.mask("T"),
    )  # fmt: skip
    drawn = draw(space, 64, Generator().manual_seed(seed))
    rows = CONDITIONS[name](drawn).nonzero().flatten()
    assume(len(rows))
    point = {n: t[rows[0]].unsqueeze(0) for n, t in drawn.items()}
    small = shrink(space, point, lambda many: CONDITIONS[name](many).tolist())
    assert bool(CONDITIONS[name](small)[0])
    assert all(small[n].shape == t.shape and small[n].dtype == t.dtype for n, t in point.items())
    assert torch.equal(small["keep"], point["keep"])
    assert all(-1 <= float(t) <= 1 for n in "xyt" for t in small[n].flatten())
    assert torch.isin((small["t"] + 1) * 4, torch.arange(9.0)).all()
    assert written(small) <= written(point)


def written(points: Points) -> int:
    """Return how many signs all numbers of a point take."""
    return sum(digits(float(v)) for t in points.values() for v in t.flatten())


def shrunk(point: list[float], condition: object) -> list[float]:
    """Shrink a point of three elements in [-10, 10]."""
    start = {"x": torch.tensor([point], dtype=torch.float64)}
    end = shrink(box(x=tg.real("T", -10, 10)), start, lambda p: condition(p["x"]).tolist())
    return end["x"][0].tolist()


def test_what_does_not_matter_becomes_zero() -> None:
    """Only the element that the objection is about keeps a number."""
    assert shrunk([1.2345, -3.21, 7.77], lambda x: x[:, 2] > 7.4) == [0, 0, 10]


def test_what_is_always_objected_to_becomes_zero() -> None:
    """Where everything fails, the point is zero."""
    assert shrunk([1.2345, -3.21, 7.77], lambda x: x[:, 0] == x[:, 0]) == [0, 0, 0]


def test_a_coincidence_is_kept() -> None:
    """Numbers that two inputs share are rounded together."""
    space = box(x=tg.real("T", -1, 1), y=tg.real("T", -1, 1))
    value = torch.tensor([[0.1234, 0.5, 0.25]], dtype=torch.float64)
    small = shrink(
        space,
        {"x": value, "y": value.clone()},
        lambda p: (
            (p["x"] == p["y"]).all(1) & (p["x"][:, 0] > 0.01) & (p["x"][:, 0] < 0.2)
        ).tolist(),
    )
    assert torch.equal(small["x"], small["y"])
    assert small["x"][0].tolist() == [0.1, 0.0, 0.0]


def test_an_objection_that_comes_and_goes_ends() -> None:
    """An objection that holds for nothing simpler leaves the point as it is."""
    point = [1.2345, -3.21, 7.77]
    exact = torch.tensor(point, dtype=torch.float64)
    assert shrunk(point, lambda x: (x == exact).all(1)) == point


def test_large_inputs_are_filled_and_not_rounded() -> None:
    """An input of many elements is made round as a whole only: an element each takes too long."""
    space = Box({"x": tg.real("N", -1, 1)}, {"N": 400}, torch.float64, "cpu")
    point = {"x": torch.linspace(0.2, 0.9, 400, dtype=torch.float64).unsqueeze(0)}
    asked = []

    def objects(many: Points) -> list[bool]:
        """Object to nothing, and remember what was asked."""
        asked.append(many["x"])
        return [False] * len(many["x"])

    assert torch.equal(shrink(space, point, objects)["x"], point["x"])
    assert all(len(rows.unique()) == 1 for many in asked for rows in many)
