"""The judgements of losses that take the best of several alternatives."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("label", "share", "drawn", "looks", "rank"),
    [
        ("order", 0.3, 1, 3, Rank.BROKEN),
        ("part", 0.3, 1, 3, Rank.BROKEN),
        ("order", 0.3, 0, 3, Rank.NOTE),
        ("part", 0.0, 1, 3, Rank.NOTE),
        ("order", 0.1, 1, 3, None),
        ("part", 0.3, 0, 3, None),
        ("part", 0.0, 0, 3, None),
        ("order", 0.3, 1, 2, None),
    ],
)
def test_rank(label, share, drawn, looks, rank, judged) -> None:
    """By whether samples differ, and whether rows are known to be samples."""
    probe = Probe(probe="batch choice", measured=share, reference=looks, step=drawn, label=label)
    found = judged("samples_choose_for_themselves", [probe])
    assert [finding.rank for finding in found] == ([] if rank is None else [rank])
    said = "0.30 of the samples" if share else "1 choice for a batch"
    assert all(finding.measured.startswith(said) for finding in found)
