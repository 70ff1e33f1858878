"""Weights of classes, against how often the classes come."""

import pytest

from trainguard.events.fit import BaselineFit

COUNTS = (40.0, 130.0, 400.0, 70.0)
INVERSE = tuple(640 / (4 * count) for count in COUNTS)


@pytest.mark.parametrize(
    ("weights", "counts", "expected"),
    [
        (INVERSE, COUNTS, []),
        (tuple(sorted(INVERSE)), COUNTS, ["broken"]),
        (tuple(count / 640 for count in COUNTS), COUNTS, ["broken"]),
        (tuple(weight**0.5 for weight in INVERSE), COUNTS, []),
        ((1.0, 1.0, 0.1, 1.0), COUNTS, []),
        ((1.0, 0.0711), (598.0, 42.5), ["broken"]),
        ((1.0, 0.5), (600.0, 300.0), ["note"]),
        ((1.0, 14.07), (598.0, 42.5), []),
        (tuple(sorted(INVERSE)), (40.0, 130.0, 400.0, 7.0), []),
        ((1.0, 2.0, 3.0), (100.0, 100.0, 101.0), []),
    ],
    ids=[
        *("inverse", "sorted", "as often", "root", "background", "turned pos_weight", "round"),
        *("pos_weight", "few samples", "even"),
    ],
)
def test_weights_of_classes(weights, counts, expected, ranks, steps) -> None:
    """Weights that fit in another order alone are broken; whatever else somebody gives is not."""
    fit = BaselineFit(
        function="cross_entropy" if len(weights) > 2 else "binary_cross_entropy_with_logits",
        weights=weights,
        counts=counts,
    )
    assert ranks("class_weights_fit_the_classes", [*steps(20), fit]) == expected
