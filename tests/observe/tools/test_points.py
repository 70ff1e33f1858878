"""Points: all inside their domains, the same for a seed, and of every kind that is promised."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Generator

import trainguard as tg
from trainguard.observe.tools.points import (
    KINDS,
    Box,
    Points,
    around,
    coincident,
    draw,
    edges,
    fill_inputs,
    log_spaced,
    plain,
    tie_axes,
    uniform,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SIZES = {"B": 2, "T": 3, "K": 4}
MIXED = {
    "means": tg.real("B T K", -1.5, 1.5),
    "scale": tg.real("B", -7, 2.5),
    "target": tg.bins("B T", -1, 1, 256),
    "classes": tg.integer("B T", 0, "K-1"),
    "sign": tg.choice(-1.0, 1.0, shape="B T"),
    "keep": tg.mask("B T"),
    "padded": tg.mask("B T", padding=1.0),
}
ends = st.floats(-100, 100)


def box(dtype: torch.dtype = torch.float64, **domains: object) -> Box:
    """Return a box of some domains, of many kinds where none is given."""
    return Box(domains or MIXED, SIZES, dtype, "cpu")


def seeded(seed: int = 0) -> Generator:
    """Return a source of random numbers."""
    return Generator().manual_seed(seed)


def close(space: Box, points: Points) -> Points:
    """Draw points around given ones."""
    return around(space, points, 300, seeded(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["mixture", "uniform", "around", "plain"])
def test_points_are_inside_their_domains(dtype: torch.dtype, where: str) -> None:
    """Every element of every input is one that its domain admits, in shape, dtype and value."""
    space = box(dtype)
    points = draw(space, 300, seeded())
    if where == "around":
        points = close(space, points)
    elif where == "uniform":
        points = uniform(space, 300, seeded())
    elif where == "plain":
        points = {name: t.expand(300, *t.shape) for name, t in plain(space).items()}
    for name, domain in MIXED.items():
        assert points[name].shape == (300, *domain.dims(SIZES))
        assert points[name].dtype == (torch.int64 if name == "classes" else expected(name, dtype))
        assert admitted(space, name, points[name])


def expected(name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of an input: masks of bool stay bool."""
    return torch.bool if name == "keep" else dtype


def admitted(space: Box, name: str, values: torch.Tensor) -> bool:
    """Say whether all values are in the domain of an input."""
    domain = space.domains[name]
    if domain.kind in ("choice", "mask"):
        return set(values.flatten().tolist()) <= {float(v) for v in domain.values}
    if domain.kind == "bins":
        listed = torch.tensor(domain.list_values(SIZES), dtype=torch.float64).to(values.dtype)
        return bool(torch.isin(values.double(), listed.double()).all())
    low, high = domain.span(SIZES)
    return bool((values.double() >= low).all() and (values.double() <= high).all())


def smallest_from(low: float, dtype: torch.dtype) -> float:
    """Return the smallest number of a dtype that is not below another one."""
    near = torch.tensor(low, dtype=dtype)
    if near.double() < low:
        near = torch.nextafter(near, torch.tensor(torch.inf, dtype=dtype))
    return near.double().item()


@settings(max_examples=60)
@given(ends, st.floats(1e-4, 100), st.sampled_from(DTYPES), st.integers(0, 99))
@example(-64.875, 0.25, torch.bfloat16, 0)  # which has -65 and -64.5
@example(5e-324, 0.5, torch.float32, 0)  # no float32 is that small but zero, which is outside
def test_no_dtype_leaves_the_range(low: float, width: float, dtype: torch.dtype, seed: int) -> None:
    """Rounding to a low precision does not carry a point out of the range that was declared."""
    space = box(dtype, x=tg.real("B", low, low + width))
    if smallest_from(low, dtype) > low + width:
        return  # the range lies between two numbers of this dtype
    points = draw(space, 64, seeded(seed))
    assert admitted(space, "x", points["x"])
    assert admitted(space, "x", close(space, points)["x"])


def test_the_same_seed_draws_the_same() -> None:
    """Points follow from the seed alone."""
    first, again, other = (draw(box(), 100, seeded(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in MIXED)
    assert not all(torch.equal(first[name], other[name]) for name in MIXED)


def test_every_kind_has_its_share() -> None:
    """However few points are drawn, there is one of every kind, and half of many are uniform."""
    rows = [len(kind(box(), uniform(box(), 5, seeded()), seeded())["means"]) for kind in KINDS]
    assert rows == [5] * len(KINDS)
    assert sum(KINDS.values()) == 8
    assert len(draw(box(), 8, seeded())["means"]) == 8


def mixture_holds(condition: object) -> int:
    """Count the points of a mixture at which a condition holds."""
    space = box(a=tg.real("B T", -1, 1), b=tg.real("B T", -1, 1), c=tg.real("K", -2, 2))
    return int(condition(draw(space, 1600, seeded())).sum())


@pytest.mark.parametrize(
    ("condition", "least"),
    [
        (lambda p: (p["a"].flatten(1).abs() >= 0.98).all(1), 90),
        (lambda p: (p["a"] == 0).flatten(1).all(1), 5),
        (lambda p: ((p["a"].abs() < 1e-5) & (p["a"] != 0)).flatten(1).any(1), 50),
        (lambda p: (p["a"].abs() == 1).flatten(1).any(1), 100),
        (lambda p: (p["a"] == p["a"][:, :1]).flatten(1).all(1), 40),
        (lambda p: (p["a"] == p["a"][:, :, :1]).flatten(1).all(1), 40),
        (lambda p: (p["a"] == p["b"]).flatten(1).all(1), 30),
        (lambda p: ((p["a"] - p["b"]).abs().flatten(1).amax(1) - 0.005).abs() < 0.005, 20),
        (lambda p: torch.isin(p["c"], p["a"]).all(1), 10),
    ],
    ids=["edges", "zero", "tiny", "single edges", "tied rows", "tied columns", "equal inputs",
         "nearly equal inputs", "one element everywhere"],
)  # fmt: skip
def test_the_mixture_meets(condition: object, least: int) -> None:
    """Sets of measure zero on which losses break are met by a fair number of points."""
    assert mixture_holds(condition) >= least


def test_edges_are_edges() -> None:
    """Each end and each near end of the range occurs."""
    space = box(x=tg.real("B T K", 0, 10))
    points = edges(space, uniform(space, 50, seeded()), seeded())["x"]
    assert sorted(points.unique().tolist()) == pytest.approx([0.0, 0.1, 9.9, 10.0])


def test_one_value_fills_an_input() -> None:
    """A filled input holds one number, and all the special ones occur."""
    space = box(x=tg.real("B T", -3, 3))
    points = fill_inputs(space, uniform(space, 400, seeded()), seeded())["x"]
    assert bool((points == points[:, :1, :1]).all())
    assert {-3.0, -1.0, 0.0, 1.0, 3.0, 1e-8} <= set(points[:, 0, 0].tolist())


def test_log_spaced_magnitudes() -> None:
    """Every decade of magnitudes has its share, on both sides of zero."""
    space = box(x=tg.real("B T", -1, 1))
    points = log_spaced(space, uniform(space, 2000, seeded()), seeded())["x"]
    counts = torch.bincount((-points.abs().log10()).floor().long().flatten().clamp(0, 9))
    assert int(counts[:9].min()) > 0.08 * points.numel()
    assert 0.45 < float((points > 0).double().mean()) < 0.55


def test_a_mask_keeps_a_prefix() -> None:
    """Padding comes last, and at least one position is kept."""
    keep = uniform(box(), 200, seeded())["keep"]
    assert bool(keep[..., 0].all())
    assert bool((keep[..., :-1] >= keep[..., 1:]).all())
    assert 0.2 < float((~keep[..., -1]).double().mean()) < 0.8


def test_ties_and_coincidences_leave_the_given_points_alone() -> None:
    """A kind makes new points and does not edit those it is given."""
    points = uniform(box(), 20, seeded())
    before = {name: t.clone() for name, t in points.items()}
    tie_axes(box(), points, seeded())
    coincident(box(), points, seeded())
    assert all(torch.equal(points[name], before[name]) for name in MIXED)


def test_around_stays_close() -> None:
    """Half of the elements are those of the given points, the others nearly so."""
    space = box(x=tg.real("B T K", -1, 1))
    elite = {"x": torch.full((3, 2, 3, 4), 0.25, dtype=torch.float64)}
    near = close(space, elite)["x"]
    assert 0.4 < float((near == 0.25).double().mean()) < 0.6
    assert float((near - 0.25).abs().median()) < 1e-3


def test_around_crosses_points() -> None:
    """Some elements of a point come from another one, most of them from its own."""
    space = Box({"x": tg.real("N", -1, 1)}, {"N": 100}, torch.float64, "cpu")
    elites = {"x": torch.tensor([0.5, -0.5], dtype=torch.float64).view(2, 1).expand(2, 100)}
    near = close(space, elites)["x"]
    own, other = ((near == side).sum(1) for side in (0.5, -0.5))
    fewer, more = torch.minimum(own, other), torch.maximum(own, other)
    assert 0.3 < float((fewer > 5).double().mean()) < 0.7
    assert float((fewer < more).double().mean()) > 0.9


def test_a_plain_point_is_plain() -> None:
    """It lies off the ends and is written in a few digits."""
    space = box(x=tg.real("B T K", -12, 6))
    values = plain(space)["x"].flatten()
    assert float(values.min()) > -12
    assert float(values.max()) < 6
    assert all(len(f"{v:.10g}") <= 6 for v in values.tolist())
    assert len(values.unique()) > 12


def test_the_elements_of_a_box() -> None:
    """The size of a point is that of all its inputs together."""
    assert box(a=tg.real("B T", 0, 1), b=tg.integer("", 0, 3)).elements == 7
