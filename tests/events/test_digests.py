"""What one process tells of its steps to be joined with those of others."""

from math import nan

import pytest

from trainguard.events.joined import digest
from trainguard.events.loop import Step
from trainguard.events.trace import Trace


def test_the_share_of_the_time_that_is_waited() -> None:
    """The first step, and those whose wait nobody knows, are left out."""
    waits = ((9.0, 10.0), (0.2, 1.0), (nan, 1.0), (0.4, 1.0), (0.0, 0.0))
    steps = tuple(Step(step=i, wait=w, seconds=s) for i, (w, s) in enumerate(waits))
    _, told = digest(Trace("train", steps), 0, 2)
    assert told.waiting == pytest.approx(0.3)
    assert digest(Trace("train", steps[:1]), 0, 2).events[1].waiting == 0
