"""The judge of messages that come back to the nodes that they are from."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe

REACHES = "messages_reach_other_nodes"


def returned(measured: float, reference: float) -> Probe:
    """Write at how many looks nothing came to another node."""
    return Probe(
        probe="messages returned",
        measured=measured,
        reference=reference,
        source="/home/me/train.py:9",
    )


def test_messages_that_come_back(judged, steps) -> None:
    """In all looks."""
    (finding,) = judged(REACHES, [*steps(9), returned(3, 3)])
    assert finding.summary == ("graph messages of `train` go back to the node that sent them")
    assert finding.measured == "3 of 3 steps in which nothing depends on the other end"
    assert (finding.allowed, finding.rank) == ("0 steps", Rank.BROKEN)


@pytest.mark.parametrize(("measured", "reference"), [(1, 1), (2, 3)])
def test_a_look_alone_is_not_enough(measured: float, reference: float, ranks, steps) -> None:
    """Nor some of several, where the graph is another one each time."""
    assert ranks(REACHES, [*steps(9), returned(measured, reference)]) == []
