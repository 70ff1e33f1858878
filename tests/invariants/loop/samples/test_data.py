"""The judges of where batches come from."""

from math import nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Step
from trainguard.events.probe import Probe


def test_a_batch_that_comes_again_and_again(judged, steps) -> None:
    """The probe has counted the batches, and those that the loader has."""
    probe = Probe(probe="batches", measured=1, reference=40, source="/home/me/train.py:20")
    (finding,) = judged("batches_differ", [*steps(20), probe])
    assert finding.summary == "every step of `train` sees the same batch"
    assert (finding.measured, finding.allowed, finding.rank, finding.source) == (
        "1 batch in 20 steps",
        "40 batches, as its loader has",
        Rank.BROKEN,
        probe.source,
    )
    assert len(judged("batches_differ", [*steps(5), probe])) == 1
    assert (
        judged("batches_differ", [*steps(20), Probe(probe="mix", measured=1, reference=40)]) == []
    )


@pytest.mark.parametrize(
    ("measured", "reference", "count"),
    [(1, 1, 20), (1, 40, 4), (2, 40, 20), (nan, 40, 20), (1, nan, 20)],
)
def test_batches_that_may_be_the_same(measured, reference, count: int, judged, steps) -> None:
    """A loader of one batch, a very short run, two batches, and what is unknown."""
    probe = Probe(probe="batches", measured=measured, reference=reference)
    assert judged("batches_differ", [*steps(count), probe]) == []
    assert judged("batches_differ", [probe]) == []


def test_a_training_that_waits_is_a_note(judged, steps) -> None:
    """The share is the median's, the place that of the longest wait."""
    run = steps(20, seconds=0.1, wait=lambda i: 0.08 if i == 7 else 0.075)
    (finding,) = judged("data_keeps_up", run)
    assert finding.summary == "`train` waits for its data most of the time"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "median of 19 steps, longest at step 7",
        "75 % of 0.1 s per step",
        "50 %",
        Rank.NOTE,
    )
    assert judged("data_keeps_up", run, **{"limit:data_keeps_up": 0.8}) == []
    assert len(judged("data_keeps_up", steps(6, seconds=0.03, wait=0.02))) == 1


@pytest.mark.parametrize(
    ("count", "seconds", "wait"),
    [
        (20, 0.1, 0.05),
        (20, 0.02, 0.015),
        (5, 0.1, 0.09),
        (20, 0.1, lambda i: 0.0 if i % 10 else 0.09),
        (20, 0.0, 0.09),
        (20, nan, nan),
        (20, 0.1, nan),
        (0, 0.1, 0.09),
    ],
    ids=["half", "short", "few", "first of an epoch", "no time", "unknown", "no wait", "none"],
)
def test_waits_that_are_left_alone(count: int, seconds, wait, judged, steps) -> None:
    """Half of the time, waits that are short, workers that start, and what is unknown."""
    assert judged("data_keeps_up", steps(count, seconds=seconds, wait=wait)) == []


@pytest.mark.parametrize("name", ["batches_differ", "data_keeps_up"])
def test_edges(name: str, judged, steps) -> None:
    """No run and one step say nothing."""
    for run in ([], steps(1), [Step(step=0)]):
        assert judged(name, run) == []
