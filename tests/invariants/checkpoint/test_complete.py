"""What is said of parts of a state that are lost, and of how files are read."""

import pytest

from tests.invariants.checkpoint.resumed import departs, judged, lost, resumption
from trainguard.core.finding import Rank
from trainguard.events.checkpoint import Load

COMPLETE, SAFE = "checkpoint_is_complete", "loading_is_safe"


@pytest.mark.parametrize(
    "kind", ["parameters", "buffers", "optimizer", "average", "scaler", "plateau"]
)
def test_a_lost_part_is_found(kind: str) -> None:
    """Each kind has a sentence and a cause of its own."""
    (finding,) = judged(COMPLETE, resumption(), lost(kind, "Net", count=2, of=4, first="0.weight"))
    assert finding.at == "Net: 0.weight, resumed after step 6"
    assert (finding.measured, finding.allowed) == ("2 of 4 differ", "0 of 4 differ")
    assert finding.why


def test_an_average_is_told_as_a_whole() -> None:
    """Nobody knows which of its tensors was which."""
    (finding,) = judged(COMPLETE, resumption(), lost("average", "EMA.shadow", of=4))
    assert (finding.at, finding.measured) == ("EMA.shadow, resumed after step 6", "another one")


def test_a_generator_is_no_part_of_the_state() -> None:
    """It matters where something is drawn from it, which the losses tell."""
    assert judged(COMPLETE, resumption(), lost("generator", "torch")) == []


def test_a_lost_rate_is_found_once() -> None:
    """An optimizer that is built anew has no rate either: that is not told twice."""
    rate = departs("rate", measured=0.1, reference=0.05)
    (finding,) = judged(COMPLETE, resumption(), rate)
    assert (finding.measured, finding.allowed) == ("0.1", "0.05")
    (finding,) = judged(COMPLETE, resumption(), rate, lost("optimizer", count=1, of=1))
    assert "optimizer" in finding.summary


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(call="torch.load", file="a.pt"), "loads with weights_only=True as it is"),
        (
            Load(call="torch.load", file="a.pt", obstacle="numpy.dtype"),
            "the file holds numpy.dtype",
        ),
        (Load(call="pickle.load", file="a.pkl"), ""),
    ],
)
def test_an_unsafe_load_is_a_note_or_a_broken_promise(load: Load, words: str) -> None:
    """It executes what stands in the file, which is the team's own."""
    (note,) = judged(SAFE, load, safe=False)
    (broken,) = judged(SAFE, load, safe=True)
    assert (note.rank, broken.rank) == (Rank.NOTE, Rank.BROKEN)
    assert words in note.why
