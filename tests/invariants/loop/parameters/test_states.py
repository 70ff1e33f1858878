"""The judges of the states that are kept and loaded."""

import pytest

from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("moved", "itself", "expected"), [(1, 0, "broken"), (0, 1, "broken"), (0, 0, "note")]
)
def test_states_that_are_the_model_itself(moved, itself, expected, judged) -> None:
    """They have moved since, or can only be meant for another module; else an edit is possible."""
    probe = Probe(probe="restored", measured=moved, reference=itself, label="Net, state of step 3")
    (finding,) = judged("kept_state_is_a_copy", [probe])
    assert finding.rank.name.lower() == expected
    assert ("online.state_dict()" in finding.why) == bool(itself)
