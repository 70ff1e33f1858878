"""The judge of good conduct."""

import pytest

from trainguard.core.finding import Rank


@pytest.mark.parametrize(
    ("quantity", "rank"),
    [
        ("mutated", Rank.BROKEN),
        ("changed", Rank.BROKEN),
        ("reseeded", Rank.BROKEN),
        ("printed", Rank.NOTE),
        ("warned", Rank.NOTE),
    ],
)
def test_what_a_call_does_besides(quantity: str, rank: Rank, sample, judged) -> None:
    """Edits, settings and seeds are broken, each at its place; printing and warning are notes."""
    (finding,) = judged("call_leaves_no_trace", sample(quantity, 1.0, label="from 1 to 2"))
    at = "the stream of x" if quantity == "reseeded" else "x"
    assert (finding.rank, finding.at, finding.measured != "") == (rank, at, True)
