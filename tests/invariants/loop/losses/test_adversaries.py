"""The judges of modules that learn from each other's scores."""

import pytest

from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("made", "told"),
    [(0, "none of them over what was made"), (30, "all of them over"), (10, "of both kinds")],
)
def test_one_answer_to_all_is_broken(made, told, judged, steps) -> None:
    """It says which way, and what was given."""
    probe = Probe(probe="one pull", measured=30.0, reference=float(made), label="critic\nup")
    (finding,) = judged("discriminators_learn_both_answers", [*steps(20), probe])
    assert "30 of 30 passes are pulled up" in str(finding.measured)
    assert told in str(finding.measured)


def test_one_target_is_told_once(ranks, steps) -> None:
    """By `targets_vary`, which names it."""
    pull = Probe(probe="one pull", measured=30.0, reference=10.0, label="critic\nup")
    target = Probe(probe="one target", measured=30.0, reference=2.0, step=60, label="1")
    early = Probe(probe="one target", measured=5.0, reference=2.0, step=5, label="1")
    assert ranks("discriminators_learn_both_answers", [*steps(20), pull]) == ["broken"]
    assert ranks("discriminators_learn_both_answers", [*steps(20), pull, target]) == []
    assert ranks("discriminators_learn_both_answers", [*steps(20), pull, early]) == ["broken"]
