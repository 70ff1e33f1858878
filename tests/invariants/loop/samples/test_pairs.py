"""The judges of pairs: what belongs together, and what does not."""

import pytest

from trainguard.events.probe import Probe

NEGATIVES = "negatives_are_no_positives"


def drawn(share: float) -> Probe:
    """Write what was seen of negatives that were drawn."""
    return Probe(
        probe="drawn negatives",
        measured=share,
        reference=1200,
        label="Tastes",
        source="/home/me/train.py:40",
    )


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, ["broken"]), (0.1, ["broken"]), (0.09, ["note"]), (0.04, ["note"]), (0.03, [])],
)
def test_negatives_that_are_positives(share, expected, ranks, steps) -> None:
    """A sparse table has some by chance."""
    assert ranks(NEGATIVES, [*steps(20), drawn(share)]) == expected


def test_negatives_are_told(judged, steps) -> None:
    """How many, of how many, and against what."""
    (finding,) = judged(NEGATIVES, [*steps(20), drawn(0.25)])
    assert finding.at == "scores of Tastes"
    assert finding.measured == (
        "25 % of 1200 pairs that are pushed down are pushed up in other calls"
    )
    assert finding.allowed == "below 10 %"
    (finding,) = judged(NEGATIVES, [*steps(20), drawn(0.25)], **{f"limit:{NEGATIVES}": 0.3})
    assert finding.rank.name == "NOTE"


@pytest.mark.parametrize(
    ("rows", "expected"), [(400, ["broken"]), (250, ["broken"]), (240, ["note"]), (40, [])]
)
def test_partners_that_are_pushed_away(rows, expected, ranks, steps) -> None:
    """In half of the rows, or more; a few are borne with."""
    probe = Probe(probe="repeated candidates", measured=rows, reference=500)
    assert ranks(NEGATIVES, [*steps(20), probe]) == expected
