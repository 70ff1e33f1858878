"""The judge of the size of a rate, by what other rates would have learned."""

from math import inf

import pytest

from trainguard.core.finding import Rank
from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Term
from trainguard.events.origin import Origin
from trainguard.events.probe import Probe

JUDGE = "rate_has_the_right_size"


def tried(own: float, *others: float, still: float = 1.0) -> WhatIf:
    """Write what became of a question: what a hundredth, a tenth, ten and a hundred times gain."""
    return WhatIf(
        question="other rates",
        outcome="answered",
        label="60 steps",
        measured=own,
        reference=still,
        numbers=(60.0, *others) if others else (),
        source="/home/me/train.py:20",
    )


def test_a_rate_that_is_too_high(judged, steps) -> None:
    """A lower one is where the run never comes; a loss that sums may be why."""
    run = steps(80, loss=0.95, rates=(0.3,))
    made = Origin(name="SGD", source="/home/me/train.py:9")
    (finding,) = judged(JUDGE, [*run, made, tried(0.9, 0.4, 0.2, 5.0, inf)])
    assert finding.summary == "steps at 0.1 times the rate learn far more than those of `train`"
    assert finding.at == "step 0, in 60 steps with the same batches"
    assert finding.measured == (
        "0.9 is the loss then, and 0.95 at the end of the run; without any step it would be 1"
    )
    assert finding.allowed == "0.2 at 0.1 times the rate, or not far above it"
    assert finding.why == "the rate of SGD, 0.3 (train.py:9), is too high"
    summed = Term(function="mse_loss", reduction="sum", calls=80, source="/me/train.py:21")
    (finding,) = judged(JUDGE, [*run, made, summed, tried(0.9, 0.4, 0.2, 5.0, inf)])
    assert finding.why.endswith(
        "is too high, or the loss is to be a mean: mse_loss (train.py:21) sums"
    )


def test_gradients_that_pile_up(ranks, steps) -> None:
    """Without zero_grad any rate is too high: that is another judgement's."""
    answer = tried(0.9, 0.4, 0.2, 5.0, inf)
    assert ranks(JUDGE, [*steps(80, loss=0.95, norm=1.0, leftover=0.9), answer]) == []
    assert ranks(JUDGE, [*steps(80, loss=0.95, norm=1.0, leftover=1e-4), answer]) == [Rank.BROKEN]


def test_a_rate_that_is_too_low(judged, ranks, steps) -> None:
    """A higher one learns what the run does not; an epsilon may be why."""
    run = steps(100, loss=0.98, rates=(1e-5,))
    (finding,) = judged(JUDGE, [*run, tried(0.99, 1.0, 1.0, 0.9, 0.3)])
    assert finding.allowed == "0.3 at 100 times the rate, or not far above it"
    assert finding.why == "the rate of SGD, 1e-05, is too low"
    epsilon = Probe(
        probe="epsilon", measured=1.0, reference=0.1, label="SGD", source="/home/me/train.py:9"
    )
    (finding,) = judged(JUDGE, [*run, epsilon, tried(0.99, 1.0, 1.0, 0.9, 0.3)])
    assert finding.why.endswith("is too low, or its epsilon, 0.1, too high (train.py:9)")
    cut = [*run, tried(0.99, 1.0, 1.0, 0.9, 0.3)]
    assert ranks(JUDGE, cut, {"ended": "stopped"}) == ["note"]
    assert ranks(JUDGE, [*run[:99], tried(0.99, 1.0, 1.0, 0.9, 0.3)]) == ["note"]
    assert ranks(JUDGE, [*run[:99], tried(0.96, 1.0, 1.0, 0.9, 0.3)]) == []
    later = steps(20, loss=0.98, optimizer="Adam")
    assert ranks(JUDGE, [*run[:99], *later, tried(0.99, 1.0, 1.0, 0.9, 0.3)]) == []
    small = Probe(probe="epsilon", measured=0.1, reference=1e-8, label="SGD")
    (finding,) = judged(JUDGE, [*run, small, tried(0.99, 1.0, 1.0, 0.9, 0.3)])
    assert finding.why.endswith("is too low")


@pytest.mark.parametrize(
    ("answer", "loss", "rates"),
    [
        (tried(0.3), 0.3, 0.1),
        (tried(0.55, 0.95, 0.2, 0.9, 5.0), 0.5, 0.1),
        (tried(0.9, 0.95, 0.2, 0.9, 5.0), 0.5, 0.1),
        (tried(0.99, 0.9, 0.81, 5.0, 5.0), 1.0, 0.1),
        (tried(0.85, 1.0, 0.99, 0.5, 0.1), 0.85, 0.1),
        (tried(0.99, 1.0, 1.0, 0.5, 0.1), 0.85, 0.1),
        (tried(0.99, 1.0, 1.0, 0.9, 0.71), 1.0, 0.1),
        (tried(0.99, 1.0, 1.0, 0.5, 0.1), 1.0, lambda i: i * 1e-5),
        (tried(0.0, 0.0, 0.0, 0.0, 0.0, still=0.0), 0.0, 0.1),
    ],
    ids=[
        "halved", "half as far", "later", "little to gain", "some", "some later", "noise", "warmup",
        "nothing",
    ],
)  # fmt: skip
def test_rates_of_the_right_size(answer, loss, rates, ranks, steps) -> None:
    """What learns in time, what no other rate learns much better, and what still warms up."""
    own = rates if callable(rates) else lambda _: rates
    run = steps(100, loss=loss, rates=lambda i: (own(i),))
    assert ranks(JUDGE, [*run, answer]) == []


def test_a_run_that_diverges(ranks, steps) -> None:
    """It is judged by the steps that were tried."""
    run = steps(80, loss=inf, rates=(3.0,))
    assert ranks(JUDGE, [*run, tried(inf, 0.9, 0.2, inf, inf)]) == ["broken"]


EPSILON = Probe(
    probe="epsilon", measured=1.0, reference=0.1, label="AdamW", source="/home/me/train.py:9"
)


def test_an_epsilon_without_which_far_more_is_learned(judged, ranks, steps) -> None:
    """It fails, and the rate is not blamed."""
    run = [*steps(20, loss=0.97), EPSILON, tried(0.99, 1.0, 1.0, 0.9, 0.3, 0.25)]
    (finding,) = judged("epsilon_is_small", run)
    assert finding.rank == Rank.BROKEN
    assert finding.at == "AdamW, epsilon 0.1"
    assert finding.measured == (
        "100 % of the elements are below it at least, in each look; after 60 steps the loss is"
        " 0.99, and without any step 1"
    )
    assert finding.allowed == "at most 75 %; 0.25 with an epsilon of 1e-08 in the same steps"
    assert ranks(JUDGE, run) == []


@pytest.mark.parametrize(
    "others",
    [(), (1.0, 1.0, 0.9, 0.3), (1.0, 1.0, 0.9, 0.3, 0.81), (1.0, 1.0, 0.9, 0.3, inf)],
    ids=["halved", "small", "little to gain", "too high for it"],
)
def test_an_epsilon_that_costs_little(others, ranks, steps) -> None:
    """It may have been chosen, with a rate that suits."""
    run = [*steps(20, loss=0.97), EPSILON, tried(0.99, *others)]
    assert ranks("epsilon_is_small", run) == ["note"]


def test_an_epsilon_with_which_a_run_comes_far(ranks, steps) -> None:
    """More than half of what is gained without it."""
    run = [*steps(20, loss=0.7), EPSILON, tried(0.7, 1.0, 1.0, 0.9, 0.6, 0.45)]
    assert ranks("epsilon_is_small", run) == ["note"]
