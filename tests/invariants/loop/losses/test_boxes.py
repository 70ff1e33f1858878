"""The judge of boxes that are taken for corners."""

import pytest

from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("turned", "expected"), [(20, ["broken"]), (5, ["broken"]), (4, []), (0, [])]
)
def test_boxes_that_begin_after_their_end(turned, expected, ranks, steps) -> None:
    """A quarter of them is broken: labels may have a few."""
    probe = Probe(probe="corners", measured=turned, reference=20)
    assert ranks("boxes_are_given_as_corners", [*steps(20), probe]) == expected
