"""The probe of jumps: lines are halved until a jump sits between two neighbouring numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator
from torch.nn import functional

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.events.trace import Trace
from trainguard.observe.loss.search import Key
from trainguard.observe.loss.slope import line
from trainguard.observe.tools.points import uniform

JUMP = Key("jump", "x")
X = {"x": tg.real("B", -3, 3)}


def objections(made, measured, function, points: int = 16, **inputs) -> list:
    """Return the samples of a loss to which the judge of continuity objects."""
    evaluator = made(function, {"B": 1}, **(inputs or X))
    drawn = uniform(evaluator.box, points, Generator().manual_seed(0))
    samples = [
        found.sample(key, 0, row, drawn)
        for key, found in measured(line, evaluator, drawn).items()
        for row in range(points)
    ]
    judge = find_invariants("gradient_is_continuous")[0].judge
    return [one for one in samples if list(judge(Trace("loss", (one,))))]


CONTINUOUS = {
    "L1": lambda x: x.abs().sum(),
    "relu": lambda x: x.relu().sum(),
    "hinge": lambda x: (1 - x).clamp_min(0).sum(),
    "square": lambda x: x.square().sum(),
    "huber": lambda x: functional.huber_loss(x, torch.zeros_like(x)),
    "square root": lambda x: (x + 3).sqrt().sum(),
    "square root of a kink": lambda x: x.abs().sqrt().sum(),
    "cube root": lambda x: (x.abs() ** (1 / 3) * x.sign()).sum(),
    "steep sigmoid": lambda x: (1e5 * x).sigmoid().sum(),
    "very steep slope": lambda x: (1e8 * x).sum(),
    "large numbers": lambda x: (x + 1e9).sum(),
    "rounded to float32": lambda x: (x.float() + 1000).double().sum(),
    "a small staircase": lambda x: ((x * 1e7).round() / 1e7).sum(),
    "branches that meet": lambda x: torch.where(x > 1, 2 * x - 1, x).sum(),
    "an approximation used too far": lambda x: torch.where(x > 1, x + 1e-5, x).sum(),
    "a number divided by its size": lambda x: (x / x.abs().clamp_min(1e-12)).sum(),
    "a log": lambda x: (x + 3).log().sum(),
    "a softplus threshold": lambda x: functional.softplus(x, beta=20).sum(),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, torch.zeros_like(x), beta=1e-3),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_no_jump_where_there_is_none(name: str, made, measured) -> None:
    """Kinks, steep slopes, poles and rounding are no jumps."""
    assert objections(made, measured, CONTINUOUS[name]) == []


JUMPS = {
    "branches that do not meet": (lambda x: torch.where(x > 1, x + 0.5, x).sum(), 1.0, 0.5),
    "a jump of slope and value": (lambda x: torch.where(x > -2, x**2, x).sum(), -2.0, 6.0),
    "a small jump on a slope": (lambda x: torch.where(x > 0.3, 9 * x + 0.1, 9 * x).sum(), 0.3, 0.1),
    "a floor": (lambda x: (x / 5).floor().sum(), 0.0, 1.0),
    "a sign": (lambda x: x.sign().sum() + x.sum(), 0.0, 2.0),
    "a jump off the grid": (lambda x: (x > math.pi / 2).double().sum() + x.sum(), 1.5708, 1.0),
}


@pytest.mark.parametrize("name", JUMPS)
def test_a_jump_and_its_place(name: str, made, measured) -> None:
    """A jump is measured, and the point is moved to where it is."""
    function, place, size = JUMPS[name]
    found = objections(made, measured, function)
    assert len(found) == 16
    for sample in found:
        assert sample.measured == pytest.approx(size, rel=1e-3)
        ((_, (x,)),) = sample.point
        assert x == pytest.approx(place, abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(place=st.floats(-2.9, 2.9), size=st.floats(0.05, 50), slope=st.floats(-5, 5))
def test_a_jump_is_found_wherever_it_is(
    place: float, size: float, slope: float, made, measured
) -> None:
    """One jump on a line, however it lies to the grid, is found to its size."""
    found = objections(made, measured, lambda x: (slope * x + size * (x > place)).sum(), points=2)
    assert [s.measured for s in found] == pytest.approx([size] * 2, rel=1e-3)


def test_the_element_is_told(made, measured) -> None:
    """Of several elements, the one that jumps is named; the others stay where they were."""
    evaluator = made(
        lambda x: (torch.where(x[:, 2] > 1, 5.0, 0.0) + x.sum(1)).sum(),
        {"B": 1, "D": 4},
        x=tg.real("B D", -3, 3),
    )
    drawn = uniform(evaluator.box, 4, Generator().manual_seed(0))
    found = measured(line, evaluator, drawn)[JUMP]
    assert found.coordinate.tolist() == [2] * 4
    others = [0, 1, 3]
    assert torch.equal(found.points["x"][:, 0, others], drawn["x"][:, 0, others])


def test_a_jump_for_some_targets(made, measured) -> None:
    """A branch that another input chooses is met where that input chooses it."""
    inputs = {"x": tg.real("B", -3, 3), "t": tg.integer("B", 0, 1)}
    found = objections(made, measured, lambda x, t: (x + t * (x > 0.2)).sum(), **inputs)
    assert found
    assert all(dict(sample.point)["t"] == (1,) for sample in found)


def test_an_infinite_loss_is_no_jump(made, measured) -> None:
    """Poles and nan belong to other judges."""
    assert objections(made, measured, lambda x: x.log().sum()) == []
    assert objections(made, measured, lambda x: (1 / x).sum()) == []
