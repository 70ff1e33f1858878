"""The judges of the learning rate in force."""

from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Scheduler

LINE = "/home/me/train.py:8"


def cosine(**more) -> Scheduler:
    """Write one scheduler of the only optimizer."""
    row = {"name": "CosineAnnealingLR", "optimizer": "SGD", "calls": 20, "source": LINE, **more}
    return Scheduler(**row)


def test_a_rate_of_zero_is_found(judged, steps) -> None:
    """The gradients are there, and nothing is done with them."""
    (finding,) = judged("learning_rate_is_positive", steps(20, rates=(0.0, 0.0), update=0.0))
    assert finding.summary == "the learning rate of `train` is zero"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 0",
        "0 in 20 of 20 steps",
        "above 0",
        Rank.BROKEN,
    )


def test_a_negative_rate_is_found(judged, steps) -> None:
    """One group in one step is enough."""
    run = steps(20, rates=lambda i: (1e-3, -1e-5 if i == 17 else 1e-3))
    (finding,) = judged("learning_rate_is_positive", run)
    assert finding.summary == "the learning rate of `train` is negative"
    assert (finding.at, finding.measured) == ("step 17", "-1e-05 in 1 of 20 steps")
    assert (finding.allowed, finding.rank) == ("above 0", Rank.BROKEN)


@pytest.mark.parametrize(
    ("count", "zeros", "expected"),
    [
        (1, {0}, []),
        (2, {0}, []),
        (2, {0, 1}, ["broken"]),
        (4, {0, 1, 2}, []),
        (4, {0, 1, 2, 3}, ["broken"]),
        (5, {0, 1, 2}, ["broken"]),
        (20, set(range(10)), []),
        (20, set(range(11)), ["broken"]),
        (20, {0, 19}, []),
    ],
)
def test_zeros(count: int, zeros: set, expected: list, ranks, steps) -> None:
    """Zeros at the ends of a schedule are fine; most of a run is not."""
    run = steps(count, rates=lambda i: (0.0 if i in zeros else 1e-3,), update=nan)
    assert ranks("learning_rate_is_positive", run) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"rates": (0.0, 1e-3)},
        {"norm": 0.0, "received": 0},
        {"update": 0.5},
        {"rates": ()},
        {"rates": (nan,)},
        {"skipped": True},
    ],
    ids=["frozen group", "no gradient", "own rate", "by hand", "unknown", "skipped"],
)
def test_zeros_that_may_be(more: dict, ranks, steps) -> None:
    """A frozen group, an optimizer with a rate of its own and unknown rates are left alone."""
    run = steps(20, **{"rates": (0.0,), "update": nan, **more})
    assert ranks("learning_rate_is_positive", run) == []


def test_an_optimizer_that_waits_for_its_turn_is_noted(ranks, steps) -> None:
    """A discriminator that is held back by its rate may be meant."""
    run = [*steps(20, rates=(0.0,), update=nan), *steps(20, optimizer="Adam")]
    assert ranks("learning_rate_is_positive", run) == ["note"]
    run = [
        *steps(20, rates=(0.0,), update=nan),
        *steps(20, rates=(0.0,), update=nan, optimizer="A"),
    ]
    assert ranks("learning_rate_is_positive", run) == ["broken", "broken"]


@pytest.mark.parametrize("more", [{"norm": nan}, {"received": 0}], ids=["received", "norm"])
def test_either_sign_of_a_gradient_will_do(more: dict, ranks, steps) -> None:
    """A gradient was there where its norm is known, and where it was seen to arrive."""
    run = steps(20, rates=(0.0,), update=nan, **more)
    assert ranks("learning_rate_is_positive", run) == ["broken"]


def test_a_rate_written_over_is_found(judged, steps) -> None:
    """The scheduler falls and the optimizer stays: somebody puts the rate back."""
    run = steps(20, rates=(5e-4,), reported=lambda i: (1e-3 * 0.9**i,))
    (finding,) = judged("rate_follows_schedule", [*run, cosine()])
    assert finding.summary.endswith("is not the one that its scheduler set")
    assert (finding.at, finding.rank, finding.source) == ("step 0", Rank.BROKEN, LINE)
    assert finding.measured == "0.0005 in force, in 20 of 20 steps"
    assert finding.allowed == "0.001 by the scheduler"
    assert [f.source for f in judged("rate_follows_schedule", run)] == ["/home/me/train.py:12"]


def decay(index: int) -> float:
    """Return the rate of an exponential schedule."""
    return 1e-3 * 0.95**index


@pytest.mark.parametrize(
    ("rate", "told", "expected"),
    [
        (lambda i: inf, decay, []),
        (lambda i: decay(i) * (1 + 1e-7), decay, []),
        (lambda i: decay(i) * (1.0 if i < 10 else 3.0), decay, []),
        (lambda i: decay(i) * min(1, (i + 1) / 30), decay, []),
        (lambda i: 1e-3 * i / 30, lambda i: 1e-3, []),
        (lambda i: 0.1 - 0.003 * i, lambda i: 1e-3, []),
        (lambda i: 3 * decay(i), decay, ["note"]),
        (lambda i: 2e-3, lambda i: 1e-3, ["note"]),
        (lambda i: 1e-3 * (1 + i % 3), decay, ["broken"]),
        (lambda i: 1e-3, lambda i: 1e-3 * (i + 1) / 20, ["broken"]),
        (lambda i: 2e-3 * (3 - i % 3), lambda i: 1e-3, ["broken"]),
        (lambda i: 1e-3, lambda i: 1e-3 * (1 - i / 19), ["broken"]),
        (lambda i: 0.0, decay, []),
        (lambda i: 1e-3, lambda i: nan, []),
        (lambda i: 1e-3, lambda i: inf, []),
    ],
    ids=[
        "no rate",
        "rounding",
        "half",
        "dampened",
        "warmup by hand",
        "warmup of the biases",
        "ratio",
        "both stand",
        "own schedule",
        "over a warmup",
        "to and fro",
        "over a fall to zero",
        "zero",
        "unknown",
        "infinite",
    ],
)
def test_rates_beside_a_schedule(rate, told, expected: list, ranks, steps) -> None:
    """A warmup that is put over a schedule comes closer to it; a fixed ratio may be meant."""
    run = steps(20, rates=lambda i: (rate(i),), reported=lambda i: (told(i),))
    assert ranks("rate_follows_schedule", [*run, cosine()]) == expected


def test_a_group_that_is_frozen_by_its_rate_is_left_alone(ranks, steps) -> None:
    """Zero that is written after each call of the scheduler freezes a group; others are judged."""
    told = {"reported": lambda i: (decay(i), decay(i))}
    run = steps(20, rates=lambda i: (0.0, decay(i)), **told)
    assert ranks("rate_follows_schedule", [*run, cosine()]) == []
    run = steps(20, rates=lambda i: (0.0, 5e-4), **told)
    assert ranks("rate_follows_schedule", [*run, cosine()]) == ["broken"]


def test_of_two_schedulers_nobody_knows_who_is_right(ranks, steps) -> None:
    """A single scheduler is judged, two that write the same optimizer are not."""
    run = steps(20, rates=(5e-4,), reported=lambda i: (decay(i),))
    assert ranks("rate_follows_schedule", [*run, cosine(), cosine(name="SWALR")]) == []
    assert ranks("rate_follows_schedule", [*run, cosine()]) == ["broken"]


def test_a_single_step_is_judged(ranks, steps) -> None:
    """One step that is made with another rate is all of them: both stand still, so it is a note."""
    assert ranks("rate_follows_schedule", steps(1, reported=(1.0,))) == ["note"]
    assert ranks("rate_follows_schedule", steps(1, reported=(1e-3,))) == []


def test_a_scheduler_of_an_optimizer_that_never_steps_is_found(judged, ranks, steps) -> None:
    """The optimizer was built again, and the schedule drives the one that is gone."""
    lost = cosine(optimizer="")
    (finding,) = judged("rate_follows_schedule", [*steps(20), lost])
    assert finding.summary == "a scheduler of `train` drives an optimizer that never steps"
    assert (finding.at, finding.source) == ("CosineAnnealingLR", LINE)
    assert (finding.measured, finding.allowed) == ("0 steps in 20 calls", "at least 1")
    assert finding.rank is Rank.BROKEN
    assert ranks("rate_follows_schedule", [*steps(20), lost, cosine()]) == ["note"]
    assert ranks("rate_follows_schedule", [*steps(20, optimizer="by hand"), lost]) == []
    assert ranks("rate_follows_schedule", [lost]) == []
    assert ranks("rate_follows_schedule", [*steps(20), cosine(optimizer="", calls=0)]) == []


def test_a_scheduler_that_is_never_advanced_is_noted(judged, ranks, steps) -> None:
    """It is said only of a run that came to its end and was not short."""
    idle = cosine(calls=0)
    (finding,) = judged("rate_follows_schedule", [*steps(20), idle])
    assert finding.summary == "a scheduler of `train` is never advanced"
    assert (finding.measured, finding.allowed) == ("0 calls in 20 steps", "at least 1")
    assert (finding.at, finding.rank) == ("CosineAnnealingLR", Rank.NOTE)
    stopped = {"ended": "stopped"}
    assert ranks("rate_follows_schedule", [*steps(20), idle], stopped) == []
    assert ranks("rate_follows_schedule", [*steps(19), idle]) == []
    assert ranks("rate_follows_schedule", [*steps(20), idle, cosine()]) == []
    waiting = cosine(calls=0, conditional=True)
    assert ranks("rate_follows_schedule", [*steps(20), waiting]) == []
