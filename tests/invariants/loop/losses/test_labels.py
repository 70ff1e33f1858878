"""The judge of labels that are not those of their inputs."""

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.events.fit import BaselineFit, Skill
from trainguard.events.loop import Logged, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace

NAME = "labels_belong_to_their_inputs"
RUN = [Step(step=number) for number in range(80)]
OURS = Logged(name="val_acc", value=0.26, step=60)


def fit(**more) -> BaselineFit:
    """Write a loss that falls a little, and what a regression explains of its pairs."""
    row = {"calls": 80, "losses": (1.65,) * 8, "constants": (1.79,) * 8, "classes": 6}
    known = {"inputs": 256, "learnable": 0.01, "evaluated": 0.8, "farther": 1.02}
    return BaselineFit(**{"function": "cross_entropy", **row, **known, **more})


@pytest.mark.parametrize(
    ("events", "ranks"),
    [
        ([fit(), OURS], ["broken"]),
        ([fit(), Skill(step=60, rows=240, right=60, commonest=48)], ["broken"]),
        ([fit()], ["note"]),
        ([fit(), OURS, Logged(name="val_acc", value=0.6, step=70)], []),
        ([fit(), OURS, Logged(name="val_acc", value=60.0, step=70)], []),
        ([fit(), OURS, Logged(name="val_acc", value=0.6, step=20), *RUN], ["broken"]),
        ([fit(), OURS, Logged(name="train_acc", value=0.9, step=70)], ["broken"]),
        ([fit(), Skill(step=60, rows=240, right=200, commonest=48)], []),
        ([fit(), Skill(step=60, rows=20, right=18, commonest=4)], ["note"]),
        ([fit(counts=(90.0, 10.0)), Logged(name="val_acc", value=0.6, step=70)], ["broken"]),
        ([fit(learnable=0.2), OURS], []),
        ([fit(evaluated=0.3), OURS], []),
        ([fit(farther=1.5), OURS], []),
        ([fit(farther=float("nan")), OURS], []),
        ([fit(inputs=64), OURS], []),
        ([fit(calls=20), OURS], []),
        ([fit(losses=(1.79,) * 8), OURS], []),
    ],
)
def test_pairs_that_teach_in_an_evaluation_alone(judged, events, ranks) -> None:
    """It takes several pairs, of inputs alike, a loss that falls, and nobody who is right."""
    assert [finding.rank.value for finding in judged(NAME, events)] == ranks


@pytest.mark.parametrize(
    ("evaluated", "learnable", "is_known"),
    [
        (float("nan"), 0.01, False),
        (float("nan"), 0.5, True),
        (0.8, 0.01, True),
    ],
)
def test_what_is_known_of_no_evaluation_is_not_passed(evaluated, learnable, is_known) -> None:
    """Pairs that teach nothing say little by themselves: there may be nothing to learn."""
    trace = Trace("train", (fit(evaluated=evaluated, learnable=learnable),), {"looked": ()})
    assert (find_invariants(f"loop.{NAME}")[0].evidence(trace) == "") is is_known


def test_samples_that_are_collated_apart(judged) -> None:
    """What a child has seen of a collate function is certain."""
    told = "entries 0 and 1 of its samples"
    probe = Probe(probe="collated", measured=13.0, reference=16.0, label=told, source="train.py:7")
    (finding,) = judged(NAME, [probe])
    assert (finding.rank.value, finding.at.file, finding.at.line) == ("broken", "train.py", 7)
    assert str(finding.measured).startswith("13 of 16 samples are beside")
