"""Exploring: the worst of everything is kept, closed in on, and counted."""

import pytest
import torch
from torch import Generator

import trainguard as tg
from trainguard.observe.loss.probes import sweep
from trainguard.observe.loss.search import Effort, Key, Measured, explore, measure, merge, tensors
from trainguard.observe.tools.points import draw

SIZE = Key("size", "x")


def generator() -> Generator:
    """Return a source of random points."""
    return Generator().manual_seed(0)


def sizes(made, points):
    """Measure the largest element of the input at each point."""
    size, at = points["x"].flatten(1).max(1)
    yield SIZE, Measured(size, size, coordinate=at, bad=size > 0.5)


@pytest.fixture(scope="module")
def evaluator(made):
    """Return the evaluator of a loss of one input of three elements."""
    return made(lambda x: x.square().sum(), {"B": 1, "D": 3}, x=tg.real("B D", -1, 1))


def test_the_worst_is_kept(evaluator) -> None:
    """Of all rounds, the worst point stands for its quantity, with its place and all counts."""
    found = explore(sizes, evaluator, 3, Effort(1, 4, 100), generator())
    badness, sample = found[SIZE]
    assert badness == sample.measured == 1.0
    assert (sample.case, sample.quantity, sample.input, sample.points) == (3, "size", "x", 400)
    assert 0 < sample.bad < 400
    ((_, ((values),)),) = sample.point
    assert values[sample.index[1]] == 1.0


def test_rounds_close_in_on_the_worst(made) -> None:
    """What a hundred thousand uniform points come within 4e-3 of is met ten times closer."""
    middle = torch.tensor([0.3, -0.61], dtype=torch.float64)

    def distance(_, points):
        far = (points["x"][:, 0] - middle).norm(dim=1)
        yield SIZE, Measured(far, -far)

    evaluator = made(lambda x: x.sum(), {"B": 1, "D": 2}, x=tg.real("B D", -1, 1))
    found = explore(distance, evaluator, 0, Effort(1, 12, 8192), generator())[SIZE]
    assert found.sample.measured < 4e-4


def test_nan_is_worst() -> None:
    """A nan goes before every number, and the first of equals is kept."""
    found = {}
    for measured in ([1.0, torch.nan, 2.0], [torch.inf, 3.0, 4.0]):
        numbers = torch.tensor(measured)
        sample = Measured(numbers, numbers).sample(SIZE, 0, 0, {"x": torch.zeros(3)})
        found.setdefault("samples", []).append(sample)
    assert [s.measured for s in found["samples"]] == [1.0, torch.inf]


def test_structures_are_merged(evaluator) -> None:
    """The worst of all structures stands, the earlier one where they tie; counts add up."""
    small = explore(sizes, evaluator, 0, Effort(1, 1, 64), generator())
    again = explore(sizes, evaluator, 1, Effort(1, 2, 64), generator())
    (joined,) = merge([small, again])
    assert (joined.case, joined.points) == (0, 192)
    assert joined.bad == small[SIZE].sample.bad + again[SIZE].sample.bad


def test_a_sample_holds_its_point(evaluator) -> None:
    """The numbers of a sample make the same tensors again."""
    points = draw(evaluator.box, 5, generator())
    samples = measure(sizes, evaluator, SIZE, 0, points)
    again = [tensors(sample.point, evaluator.box)["x"] for sample in samples]
    assert torch.equal(torch.cat(again), points["x"])
    assert measure(sizes, evaluator, Key("other"), 0, points) == []


def test_a_sweep_measures_values_and_gradients(made, measured) -> None:
    """The loss, the worst coordinate of the gradient, and the largest finite one beside it."""
    evaluator = made(lambda x: x.log().sum(1), {"B": 1, "D": 2}, x=tg.real("B D", 0, 1))
    rows = {"x": torch.tensor([[[1.0, 0.5]], [[0.0, 0.5]]], dtype=torch.float64)}
    found = measured(sweep, evaluator, rows)
    assert found[Key("value")].bad.tolist() == [False, True]
    assert found[Key("gradient", "x")].bad.tolist() == [False, True]
    told = {
        key.quantity: [(s.measured, s.index) for s in samples(found[key], key, rows)]
        for key in found
    }
    assert told == {
        "value": [(pytest.approx(-0.6931, rel=1e-3), ()), (-torch.inf, ())],
        "gradient": [(2.0, (0, 1)), (torch.inf, (0, 0))],
        "largest_gradient": [(2.0, (0, 1)), (2.0, (0, 1))],
    }


def samples(found: Measured, key: Key, rows: dict) -> list:
    """Return what was measured at each of two points."""
    return [found.sample(key, 0, row, rows) for row in range(2)]


def test_the_effort_fits_the_evaluator(made) -> None:
    """No round is larger than what the evaluator takes."""
    looped = made(lambda x: x.sum() if float(x.norm()) > 1 else x.norm(), x=tg.real("B", -1, 1))
    found = explore(sizes, looped, 0, Effort(1, 2, 10**6), generator())
    assert found[SIZE].sample.points == 2 * looped.batch
