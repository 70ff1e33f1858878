"""Keys that are asked for and never there."""

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe


def test_a_key_that_is_never_there(judged) -> None:
    """The line that asks is named, and the key that nothing reads."""
    label = "batch.get('actions_id_pad')\naction_is_pad"
    probe = Probe(probe="missed key", measured=3.0, label=label, source="train.py:9")
    (finding,) = judged("keys_are_there", [probe])
    assert finding.at == "`batch.get('actions_id_pad')`"
    assert finding.measured == "0 times there; `action_is_pad` is there, and nothing reads it"
    assert (finding.rank, finding.source) == (Rank.BROKEN, "train.py:9")
