"""The judges of what the groups of an optimizer are made with."""

import pytest

from trainguard.events.loop import Scheduler
from trainguard.events.probe import Probe


def made(high: float, low: float, step: int = 0) -> Probe:
    """Write the rates that the groups of the only optimizer were made with."""
    source = "/home/me/train.py:9"
    return Probe(
        probe="group rates", measured=high, reference=low, step=step, label="SGD", source=source
    )


def test_rates_that_are_equal_though_made_apart(judged, steps) -> None:
    """All steps must have equal rates, and there must be enough of them."""
    run = steps(20, rates=(1e-3, 1e-3))
    (finding,) = judged("groups_keep_their_rates", [*run, made(1e-3, 1e-4)])
    assert finding.summary == "parameter groups of `train` lose their different learning rates"
    assert finding.measured == "0.001 in each at the first step, equal in all 20 steps"
    assert (finding.allowed, finding.source) == (
        "0.001 down to 0.0001, as they are made",
        "/home/me/train.py:9",
    )


@pytest.mark.parametrize(
    ("count", "rates", "probe"),
    [
        (19, (1e-3, 1e-3), made(1e-3, 1e-4)),
        (20, (1e-3, 1e-4), made(1e-3, 1e-4)),
        (20, (1e-3, 1e-3), made(1e-3, 0.0)),
        (20, (1e-3, 1e-3), made(1e-3, 1e-3)),
        (20, (1e-3,), made(1e-3, 1e-4)),
    ],
    ids=["few", "apart", "zero", "alike", "one"],
)
def test_rates_that_are_as_they_were_made(count, rates, probe, ranks, steps) -> None:
    """Too few steps, rates that stay apart, a frozen group, equal ones, and one group."""
    assert ranks("groups_keep_their_rates", [*steps(count, rates=rates), probe]) == []


def test_a_first_group_that_moves_alone(ranks, judged, steps) -> None:
    """The line that sets it makes it sure; a scheduler, or few rates, are a choice."""
    run = steps(20, rates=lambda i: (1e-3 / (1 + i), 1e-3))
    (finding,) = judged("groups_keep_their_rates", [*run, made(1e-3, 1e-3, step=1)])
    assert finding.summary == "a formula of `train` sets the rate of the first group alone"
    assert finding.measured == (
        "0.001 in the other groups in all 20 steps, while the first one's has 20 values"
    )
    assert ranks("groups_keep_their_rates", [*run, made(1e-3, 1e-3)]) == ["note"]
    assert ranks("groups_keep_their_rates", [*run, made(1e-3, 1e-3, step=-1)]) == []
    planned = Scheduler(name="LambdaLR", optimizer="SGD", calls=20, early=0)
    assert ranks("groups_keep_their_rates", [*run, made(1e-3, 1e-3, step=1), planned]) == []
    cut = steps(20, rates=lambda i: (1e-3 * 0.5 ** (i // 5), 1e-3))
    assert ranks("groups_keep_their_rates", [*cut, made(1e-3, 1e-3, step=1)]) == []
    both = steps(20, rates=lambda i: (1e-3 / (1 + i), 1e-3 if i < 10 else 1e-4))
    assert ranks("groups_keep_their_rates", [*both, made(1e-3, 1e-3, step=1)]) == []


def test_a_last_group_that_moves_alone(ranks, steps) -> None:
    """It may be meant; one in the middle certainly is."""
    last = steps(20, rates=lambda i: (1e-3, 1e-3, 1e-3 / (1 + i)))
    assert ranks("groups_keep_their_rates", [*last, made(1e-3, 1e-3, step=1)]) == ["note"]
    middle = steps(20, rates=lambda i: (1e-3, 1e-3 / (1 + i), 1e-3))
    assert ranks("groups_keep_their_rates", [*middle, made(1e-3, 1e-3, step=1)]) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (0.999, 0.9, ["broken"]),
        (0.99, 0.95, ["broken"]),
        (0.9, 0.999, []),
        (0.9, 0.9, []),
        (0.0, 0.9, []),
        (0.9, 0.0, ["broken"]),
    ],
)
def test_betas_in_order(first, second, expected, ranks) -> None:
    """The condition is that of the paper, with equal ones below it."""
    probe = Probe(probe="betas", measured=first, reference=second, label="Adam, group 0")
    assert ranks("averages_of_squares_last_longer", [probe]) == expected


def test_a_rate_that_nothing_reads_is_named(judged) -> None:
    """Beside the one in force."""
    probe = Probe(probe="unread setting", measured=0.001, reference=0.01, label="Adam.lr")
    (finding,) = judged("rates_are_set_where_they_are_read", [probe])
    assert finding.summary == "a rate of `train` is set where nothing reads it"
    assert (finding.at, finding.measured) == ("`Adam.lr`", "0.001")
    assert finding.allowed == "0.01, the rate in force"


@pytest.mark.parametrize(
    ("loaded", "steps", "begun", "expected"),
    [
        (1e-4, 8, "0.3", ["broken"]),
        (0.2, 8, "0.3", ["broken"]),
        (5e-3, 8, "0.3", []),
        (1e-4, 7, "0.3", []),
        (1e-4, 8, "", []),
        (0.0, 8, "0.3", ["broken"]),
    ],
    ids=["small", "large", "near", "few", "the same schedule", "zero"],
)
def test_rates_that_were_loaded(loaded, steps, begun, expected, ranks) -> None:
    """Ten times away from that of the argument, in eight steps, and of another training."""
    probe = Probe(probe="loaded rate", measured=loaded, reference=0.02, step=steps, label=begun)
    assert ranks("given_rates_outlast_loading", [probe]) == expected
