"""The judge of streams whose passes draw the same numbers."""

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe


def test_passes_that_draw_alike_are_noted(judged, steps) -> None:
    """They may be meant: as data that are made when they are asked for."""
    seen = {"probe": "seeded stream", "measured": 30.0, "reference": 30.0}
    probe = Probe(label="Simulations\n4", source="/home/me/data.py:9", **seen)
    (finding,) = judged("epochs_are_reshuffled", [*steps(20), probe])
    said = "each pass of `train` through its data draws the same numbers"
    assert (finding.summary, finding.rank) == (said, Rank.NOTE)
    assert finding.measured == "30 passes begin alike, each by seed 4"
    assert (finding.at, finding.source) == ("the stream Simulations", "/home/me/data.py:9")
