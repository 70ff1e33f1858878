"""The judge of distances in a loss that are of one thing."""

import pytest

from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("looks", "label", "expected"),
    [
        (4, "a distance of parameters to constants", ["broken"]),
        (3, "a distance of parameters to constants", []),
        (6, "what a loss function is given", ["note"]),
    ],
)
def test_distances_that_are_always_zero(looks, label, expected, ranks, steps) -> None:
    """In four looks or more; outputs may be made to be the target."""
    rest = {"measured": float(looks), "reference": float(looks), "label": label}
    probe = Probe(probe="self distance", **rest)
    assert ranks("distances_are_of_two", [*steps(20), probe]) == expected
