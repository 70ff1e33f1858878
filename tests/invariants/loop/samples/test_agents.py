"""The judge of episodes that begin by one seed."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe


def test_episodes_by_one_seed_are_told(judged, steps) -> None:
    """The line that makes the generator is where to mend it."""
    seen = Probe(
        probe="alike starts",
        measured=660.0,
        reference=661.0,
        step=4,
        label="Actor\n6",
        source="/home/me/env.py:9",
    )
    (finding,) = judged("episodes_differ", [*steps(20), seen])
    assert finding.summary == "the episodes of `train` all begin by one seed"
    assert finding.measured == "660 of 661 episodes begin with one state, by seed 6"
    assert (finding.at, finding.rank) == (
        "states that Actor acts on and learns from",
        Rank.BROKEN,
    )
    assert finding.source == "/home/me/env.py:9"


@pytest.mark.parametrize(("others", "rank"), [(0, "note"), (1, "note"), (2, "broken")])
def test_a_place_may_be_the_same_on_purpose(others: int, rank: str, ranks, steps) -> None:
    """Unless other seeds were used at that line, too."""
    seen = Probe(probe="alike starts", measured=60.0, reference=60.0, step=others, label="Actor\n6")
    assert ranks("episodes_differ", [*steps(20), seen]) == [rank]
