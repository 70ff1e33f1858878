"""Judgements of logs by hand: where they stay silent, and where a little more tells."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from trainguard.core.finding import Finding, Rank
from trainguard.events.base import Plain
from trainguard.events.log import LogPart
from trainguard.events.loop import Evaluation, Logged, Step
from trainguard.events.trace import Trace
from trainguard.invariants.log.evaluations import (
    validation_follows_training,
    validation_loss_is_possible,
)
from trainguard.invariants.log.losses import logged_loss_beats_chance
from trainguard.invariants.log.rates import rate_follows_one_schedule
from trainguard.invariants.log.resuming import loss_continues_after_resume
from trainguard.invariants.log.speed import throughput_lasts

STOPPED = [1e-4 * min(n + 1, 15) / 100 for n in range(200)]


def judged(
    judge: Any, rates: list[float], settings: tuple[tuple[str, str], ...] = (), **told: Plain
) -> list[Finding]:
    """Return what is found in a log of these rates, one for each step."""
    steps = tuple(Step(step=n, rates=(r,), reported=(r,)) for n, r in enumerate(rates))
    return list(judge(Trace("run", steps, {"unit": "step", "settings": settings, **told})))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ((), 0),
        ((("warmup_steps", "100"),), 1),
        ((("warmup_steps", "0"),), 0),
        ((("warmup_steps", "15"), ("lr", "1e-4")), 0),
        ((("warmup_steps", "1000"), ("lr", "1e-4")), 0),
        ((("optimizer.lr", "1e-4"),), 1),
        ((("optimizer.lr", "1e-5"),), 0),
        ((("a.lr", "1e-4"), ("b.lr", "1e-3")), 0),
        ((("lr", "fast"),), 0),
    ],
)
def test_a_warm_up_that_stops_is_told_by_the_settings(settings: Any, found: int) -> None:
    """By its steps, else by its peak; not where they are many, no number or not reached yet."""
    told = judged(rate_follows_one_schedule, STOPPED, settings)
    assert [finding.rank for finding in told] == [Rank.NOTE] * found


def test_a_warm_up_that_never_begins_is_told_by_the_settings() -> None:
    """The rate is that of the first step for good."""
    told = judged(rate_follows_one_schedule, [1e-6] * 200, (("warmup_steps", "100"),))
    assert "a warm-up of 100 steps" in str(told[0].allowed)


@pytest.mark.parametrize(
    ("loss", "settings", "found"),
    [
        (10.37, (("model.vocab_size", "32000"),), 1),
        (10.37, (), 0),
        (4.2, (("vocab_size", "32000"),), 0),
        (42.0, (("vocab_size", "32000"),), 0),
        (10.37, (("vocab_size", "32000"), ("decoder.vocab_size", "50000")), 0),
        (0.0, (("num_classes", "1"),), 0),
    ],
)
def test_a_loss_at_chance_is_told_by_the_vocabulary(loss: float, settings: Any, found: int) -> None:
    """Where the settings tell of one; a loss that lies elsewhere may be no cross-entropy."""
    steps = tuple(Step(step=n, loss=loss, losses=(loss,)) for n in range(40))
    trace = Trace("run", steps, {"unit": "step", "settings": settings})
    assert len(list(logged_loss_beats_chance(trace))) == found


@pytest.mark.parametrize(("every", "found"), [(1, 0), (50, 1)])
def test_a_run_of_an_hour_that_becomes_slower_is_told(every: int, found: int) -> None:
    """However rarely it logs; one of half a minute may be slowed by anything."""
    paces = [0.3] * 40 + [0.9] * 40
    steps = tuple(Step(step=every * n, seconds=pace) for n, pace in enumerate(paces))
    assert len(list(throughput_lasts(Trace("run", steps, {"unit": "step"})))) == found


@pytest.mark.parametrize(("total", "found"), [(200, 1), (2000, 0), (0, 0)])
def test_a_decay_that_hardly_falls_needs_the_end_of_the_run(total: int, found: int) -> None:
    """A run that was stopped early has not fallen far either."""
    rates = [1e-3 * (1 - (n // 20) / 2000) for n in range(200)]
    assert len(judged(rate_follows_one_schedule, rates, total=total)) == found


def resumed(factor: float, until: int, fall: float = 3.0, seed: int = 0) -> list[Finding]:
    """Return what is found where the loss is multiplied from row 150 to another one."""
    rng = Random(seed)
    losses = [fall * 0.99**n + 0.6 + 0.03 * rng.gauss(0, 1) for n in range(300)]
    losses = [v * factor if 150 <= n < until else v for n, v in enumerate(losses)]
    steps = [Step(step=n, case=int(n >= 150), loss=v, losses=(v,)) for n, v in enumerate(losses)]
    parts = (LogPart(case=0, first=0, last=149), LogPart(case=1, first=150, last=299))
    return list(loss_continues_after_resume(Trace("run", (*parts, *steps))))


def test_samples_that_are_seen_again_are_found_where_the_loss_leaps_back() -> None:
    """A loss that is 12 % lower for 70 rows; not one that stays lower, nor none."""
    assert len([s for s in range(10) if resumed(0.88, 220, seed=s)]) >= 9
    assert not [s for s in range(10) if resumed(0.96, 300, seed=s)]
    assert not [s for s in range(40) if resumed(1.0, 300, seed=s)]


@pytest.mark.parametrize(
    ("value", "promises", "rank"),
    [
        (-0.1, {"classes": 10}, Rank.BROKEN),
        (-0.1, {}, None),
        (0.05, {}, Rank.NOTE),
        (0.3, {}, None),
        (0.05, {"limit:validation_loss_is_possible": 0.01}, None),
    ],
)
def test_a_validation_loss_that_cannot_be(
    value: float, promises: dict[str, Plain], rank: Rank | None
) -> None:
    """Below zero where it is a cross-entropy, or far below the training loss."""
    steps = [Step(step=n, loss=1.0, losses=(1.0,)) for n in range(40)]
    one = Evaluation(step=0, module="val_loss", loss=value, count=1, measures=True)
    told = [replace(one, step=n, clock=n) for n in range(0, 40, 4)]
    found = [*validation_loss_is_possible(Trace("run", (*steps, *told), {}, promises))]
    assert [finding.rank for finding in found] == ([rank] if rank else [])


@pytest.mark.parametrize(("value", "found"), [(0.5, 1), (1.0, 0), (100.0, 0), (0.999, 1)])
def test_a_metric_that_stands_at_its_best_is_no_frozen_one(value: float, found: int) -> None:
    """An accuracy of an easy part of the task is 1 in all evaluations; one of 0.5 is not."""
    steps = [Step(step=n, loss=2.0 - n / 40, losses=(2.0 - n / 40,)) for n in range(40)]
    said = [Logged(step=n, clock=n, name="speaker_acc", value=value) for n in range(0, 40, 4)]
    judged = [*validation_follows_training(Trace("run", (*steps, *said), {}, {}))]
    assert len(judged) == found
