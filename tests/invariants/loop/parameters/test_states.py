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


def test_statistics_of_an_average_that_stay(judged) -> None:
    """It says how many batches the model has seen since."""
    probe = Probe(probe="kept statistics", measured=60, step=80, label="Net.norm", source="a.py:9")
    (finding,) = judged("statistics_follow_the_data", [probe])
    assert finding.measured == "as they were, while the model has seen 60 batches"
    assert finding.at == "step 80, Net.norm"
