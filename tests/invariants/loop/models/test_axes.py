"""The judges of axes and of what is multiplied along them."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("name", "rank"),
    [("attention scale", Rank.BROKEN), ("attention scale, perhaps", Rank.NOTE)],
)
def test_scores_that_are_multiplied(judged, steps, name: str, rank: Rank) -> None:
    """It is told by how much, and by how much they should be; of one step nothing."""
    seen = {"probe": name, "reference": 5.0, "label": "16"}
    (finding,) = judged("attention_scores_are_divided", [*steps(9), Probe(measured=2.0, **seen)])
    assert finding.rank is rank
    assert finding.measured == "4 times the product of queries and keys"
    assert finding.allowed == "0.25 times it, which is 1 / sqrt(16)"
    assert judged("attention_scores_are_divided", [*steps(9), Probe(measured=1.0, **seen)]) == []


@pytest.mark.parametrize(
    ("name", "rank"), [("cosines", Rank.BROKEN), ("cosines, perhaps", Rank.NOTE)]
)
def test_embeddings_that_are_normalised_over_the_batch(judged, steps, name, rank) -> None:
    """It is a note where it may be meant."""
    probe = Probe(probe=name, measured=2.0, reference=2.0, label="(32,8)")
    (finding,) = judged("similarities_are_of_unit_rows", [*steps(9), probe])
    assert finding.rank is rank
    assert finding.measured.startswith("2 of 2 steps have columns of one norm")
