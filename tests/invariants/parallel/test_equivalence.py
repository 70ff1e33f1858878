"""Judgements of steps on several processes, over numbers written by hand."""

from math import nan, sqrt
from typing import Any

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.parallel import Likeness
from trainguard.events.trace import Trace

LOSS, GRADIENTS, UPDATE = (
    f"{name}_one_process" for name in ("loss_equals", "gradients_equal", "update_equals")
)


def scaled(ratio: float, quantity: str = "gradient", world: int = 4, **more: Any) -> Likeness:
    """Write what all ranks have as so many times what one process has."""
    gap = abs(ratio - 1)
    numbers = {
        "whole": 1.0,
        "apart": gap,
        "mean": gap,
        "sum": abs(world * ratio - 1),
        "ratio": ratio,
        **more,
    }
    return Likeness(
        quantity=quantity, world=world, value=ratio, reference=1.0,
        **{"place": "fc.weight", **numbers},
    )  # fmt: skip


def judge(name: str, *events: Likeness, **promises: float) -> list[Finding]:
    """Return what one invariant finds."""
    (made,) = find_invariants(f"parallel.{name}")
    return list(made.judge(Trace("step", events, {}, promises)))


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (4.0, "it is N times"),
        (0.25, "it is 1/N times"),
        (2.0, "it is sqrt(N) times"),
        (1 / sqrt(4), "it is 1/sqrt(N) times"),
        (3.0, "the same but for a factor"),
    ],
)
def test_a_gradient_off_by_a_factor(ratio: float, told: str) -> None:
    """The factor is named by the number of processes, with its usual cause."""
    (finding,) = judge(GRADIENTS, scaled(ratio))
    assert told in finding.why
    assert finding.rank is Rank.BROKEN


def test_a_gradient_of_each_rank() -> None:
    """Ranks that differ, while their mean is right, have reduced nothing."""
    (finding,) = judge(GRADIENTS, scaled(1.4, between=0.8, mean=0.0))
    assert "nothing reduces it" in finding.why
    (finding,) = judge(GRADIENTS, scaled(1.4, between=0.8))
    assert "a part of them" in finding.why


def test_rows_of_unequal_weight() -> None:
    """A gradient of another direction, alike on all ranks."""
    (finding,) = judge(GRADIENTS, scaled(1.1, stray=0.2))
    assert "unequal weights" in finding.why


def test_rounding_is_allowed() -> None:
    """What is a part in a thousand, or nothing beside the other parameters, is the same."""
    assert judge(GRADIENTS, scaled(1.0005), scaled(3.0, apart=9e-6)) == []
    assert judge(GRADIENTS, scaled(1.02), **{f"limit:{GRADIENTS}": 0.05}) == []
    assert len(judge(GRADIENTS, scaled(nan))) == 1


def test_gradients_in_parts() -> None:
    """Where none can be put together, as under FSDP1, nothing has passed."""
    for name in (GRADIENTS, UPDATE):
        (made,) = find_invariants(f"parallel.{name}")
        assert "put together" in made.evidence(Trace("step", (scaled(1.0, "loss"),)))
        assert made.evidence(Trace("step", (scaled(1.0),))) == ""


def test_coarse_numbers_are_rounded() -> None:
    """What is computed in bfloat16 may be off by some parts in a hundred, and no more."""
    coarse = {"precision": 2**-7, "whole": 0.0}
    assert judge(GRADIENTS, scaled(1.03, **coarse)) == []
    assert len(judge(GRADIENTS, scaled(1.05, **coarse))) == 1
    assert judge(UPDATE, scaled(1.05, "update", rounding=0.06)) == []


def test_shards_with_factors_of_their_own() -> None:
    """Each rank has clipped what it holds by the norm of that."""
    (finding,) = judge(GRADIENTS, scaled(1.4, stray=0.1, shards=(1.6, 1.3)))
    assert "clipped by the norm of that" in finding.why
    (finding,) = judge(GRADIENTS, scaled(4.0, shards=(4.0, 4.0)))
    assert "it is N times" in finding.why


def test_the_fewest_processes_are_told() -> None:
    """The parameter that is farthest off is told first, the others are elsewhere."""
    worst = scaled(4.0, place="fc.bias")
    (finding,) = judge(GRADIENTS, scaled(2.0), worst, scaled(8.0, world=8))
    assert (finding.at, finding.event) == ("fc.bias, rank 0 of 4", worst)
    assert finding.elsewhere == ("fc.weight, rank 0 of 4",)


def test_statistics_of_each_rank() -> None:
    """BatchNorm without exchange is often meant: a note."""
    own = scaled(1.2, stray=0.1, lone_statistics=True)
    (finding,) = judge(GRADIENTS, own)
    assert (finding.rank, "SyncBatchNorm" in finding.why) == (Rank.NOTE, True)
    (finding,) = judge(LOSS, scaled(1.2, "loss"), own)
    assert (finding.rank, "SyncBatchNorm" in finding.why) == (Rank.NOTE, True)


@pytest.mark.parametrize(("gradient", "rank"), [(1.0, Rank.NOTE), (1.2, Rank.BROKEN)])
def test_a_loss_that_differs(gradient: float, rank: Rank) -> None:
    """With right gradients only what is reported is wrong."""
    (finding,) = judge(LOSS, scaled(1.1, "loss"), scaled(gradient))
    assert finding.rank is rank


@pytest.mark.parametrize(
    ("ratio", "rank", "told"),
    [
        (0.0, Rank.BROKEN, "may not hold it"),
        (4.0, Rank.NOTE, "a batch that does too"),
        (2.0, Rank.NOTE, "a batch that does too"),
        (0.7, Rank.BROKEN, "another rate"),
    ],
)
def test_an_update_that_differs(ratio: float, rank: Rank, told: str) -> None:
    """A rate that grows with the processes may be meant."""
    (finding,) = judge(UPDATE, scaled(1.0), scaled(ratio, "update"))
    assert finding.rank is rank
    assert told in finding.why


def test_updates_of_other_gradients() -> None:
    """Where the gradients differ, an update has nothing to be held against."""
    events = (scaled(2.0), scaled(2.0, "update"))
    assert judge(UPDATE, *events) == []
    (made,) = find_invariants(f"parallel.{UPDATE}")
    assert made.evidence(Trace("step", events)) == "the gradients differ already"
    assert made.evidence(Trace("step", (scaled(1.0),))) == ""
