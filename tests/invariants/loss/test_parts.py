"""The judges of what a loss is made of: components, and the bins of a likelihood."""

import math

import pytest


@pytest.mark.parametrize(
    ("pulls", "expected"),
    [
        ({"kl": 1.0, "pixels": 1000.0}, []),
        ({"kl": 1.0, "pixels": 1001.0}, ["pixels against kl"]),
        ({"kl": 1.0, "other": 0.5, "pixels": 1001.0}, ["pixels against other"]),
        ({"kl": 0.0, "pixels": 1001.0}, []),
        ({"kl": math.nan, "pixels": 1001.0}, []),
        ({"pixels": 1001.0}, []),
    ],
    ids=["allowed", "drowned", "the weakest", "no gradient", "nan", "alone"],
)
def test_components(pulls: dict[str, float], expected: list[str], judged, components) -> None:
    """The strongest component is held against the weakest that has a gradient."""
    found = judged("components_are_balanced", *components(**pulls))
    assert [f.at for f in found] == expected
    limit = {"limit__components_are_balanced": 1e5}
    assert judged("components_are_balanced", *components(**pulls), **limit) == []


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1.0, False), (1.0009, False), (0.9991, False), (1.0011, True), (0.9989, True)]
    + [(bad, True) for bad in (math.nan, math.inf, -math.inf)],
)
def test_likelihoods(total: float, expected: bool, sample, broken) -> None:
    """Probabilities sum to one within a thousandth; nan is no sum."""
    one = sample("likelihood", total)
    assert broken("likelihood_sums_to_one", one) is expected
    if math.isfinite(total):
        assert not broken("likelihood_sums_to_one", one, limit__likelihood_sums_to_one=0.1)
