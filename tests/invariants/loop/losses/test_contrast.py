"""Contrastive losses held against a model that knows nothing, on runs that are written down."""

from math import log

import pytest

from trainguard.events.fit import BaselineFit
from trainguard.events.probe import Probe

FOUND = "partners_are_found"
CHANCE = log(64)


def pairs(floor: float = 0.0) -> Probe:
    """Return what a look at the graphs of losses over 64 candidates tells."""
    return Probe(probe="pairs", measured=CHANCE, reference=floor, label="(64,64)")


@pytest.mark.parametrize(
    ("first", "last", "fades", "expected"),
    [
        (1.0, 1.0, 80, ["note"]),
        (1.2, 1.005, 20, ["note"]),
        (1.2, 1.005, 80, []),
        (2.0, 2.0, 80, ["note"]),
        (1.0, 0.9, 80, []),
        (0.8, 0.8, 80, []),
        (5.0, 5.0, 80, []),
        (2.0, 1.0, 80, []),
    ],
)
def test_a_loss_at_chance(
    first: float, last: float, fades: int, expected: list[str], ranks, steps
) -> None:
    """One that is there, or comes near from above, is told; both directions may be added up."""
    run = steps(80, loss=lambda i: CHANCE * (last + (first - last) * max(0, 1 - i / fades)))
    assert ranks(FOUND, [*run, pairs()]) == expected


def test_what_no_score_could_change(ranks, steps) -> None:
    """Where the best scores lose nearly as much, the temperature is wrong for sure."""
    run = steps(80, loss=lambda _: CHANCE)
    assert ranks(FOUND, [*run, pairs(0.95 * CHANCE)]) == ["broken"]


def test_short_runs_and_those_judged_elsewhere(judged, steps) -> None:
    """A run of a few steps says nothing, and a loss of torch alone is held against a constant."""
    assert judged(FOUND, [*steps(40, loss=lambda _: CHANCE), pairs()]) == []
    fit = BaselineFit(function="cross_entropy", calls=80, only=1.0)
    assert judged(FOUND, [*steps(80, loss=lambda _: CHANCE), pairs(), fit]) == []
    rising = steps(80, loss=lambda _: CHANCE, rates=lambda i: (1e-5 * (i + 1),))
    assert judged(FOUND, [*rising, pairs()]) == []


@pytest.mark.parametrize(
    ("share", "looks", "expected"), [(0.1, 5, ["note"]), (0.3, 5, []), (0.1, 2, []), (1.4, 5, [])]
)
def test_sides_that_shrink(share: float, looks: int, expected: list[str], ranks, steps) -> None:
    """Far enough, in looks enough: what is drawn at first may be large."""
    probe = Probe(probe="shrinking", measured=share, reference=1.0, step=looks)
    assert ranks("agreement_keeps_samples_apart", [*steps(80), probe]) == expected
