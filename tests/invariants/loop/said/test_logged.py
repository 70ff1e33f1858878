"""The judge of logged values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Logged, Step

TRUE = "logged_values_are_true"
LINE = "/home/me/train.py:40"
NORM = "train/grad_norm"


def say(
    run: Sequence[Step], value: Callable[[Step], float], name: str = NORM, late: int = 3, **more
) -> list[Logged]:
    """Write a value after each step, or before it (`late=-3`)."""
    return [
        Logged(
            name=name,
            value=value(step),
            step=index + (late > 0),
            clock=step.clock + late,
            **{"source": LINE, **more},
        )
        for index, step in enumerate(run)
    ]


def clipped(steps, **more) -> list[Step]:
    """Write a run in which clipping to one binds in nearly every step."""
    before = lambda i: 2.0 + 0.1 * (i % 7)  # noqa: E731 one rule for two columns
    return steps(20, norm_before=before, norm=1.0, clip="taken", clip_limit=1.0, **more)


def warmed(steps, count: int = 20) -> list[Step]:
    """Write a run whose rate falls along a line."""
    return steps(count, rates=lambda i: (1e-3 * (1 - i / 25),))


def test_a_norm_taken_after_zeroing(judged, steps) -> None:
    """Zero in every log, and never in truth."""
    run = steps(20, norm=0.5, norm_before=0.5)
    (finding,) = judged(TRUE, [*run, *say(run, lambda _: 0.0, rounding=5e-7)])
    assert finding.summary == "the gradient norm that `train` logs is zero where the truth is not"
    assert finding.at == "train/grad_norm (stdout), after 1 step"
    assert (finding.measured, finding.allowed) == ("0 (20 of 20 times)", "0.5")
    assert (finding.rank, finding.source) == (Rank.BROKEN, LINE)
    assert "zero_grad()" in finding.why


@pytest.mark.parametrize(
    ("name", "why"),
    [("lr", "it may be read from another group"), ("train/loss", "it may be reset before")],
)
def test_a_zero_that_is_no_norm(name: str, why: str, judged, steps) -> None:
    """What clears gradients has no part in it."""
    run = steps(20, rates=(0.1,))
    (finding,) = judged(TRUE, [*run, *say(run, lambda _: 0.0, name=name)])
    assert finding.why.startswith(why)


def test_a_norm_that_is_zero_between_the_steps(judged, steps) -> None:
    """Real on update steps, and set to zero on the micro-batches before."""
    run = steps(10, norm=0.5, norm_before=0.5)
    true = say(run, lambda step: step.norm)
    zeros = [z for late in (4, 5, 6) for z in say(run, lambda _: 0.0, late=late)]
    (finding,) = judged(TRUE, [*run, *true, *zeros])
    assert finding.summary == "the gradient norm that `train` logs is zero where no step was made"
    assert (finding.measured, finding.allowed) == ("0 (30 of 40 times)", "0.5")
    assert finding.rank is Rank.BROKEN
    before = say(run[1:], lambda step: step.norm, late=-1)
    assert len(judged(TRUE, [*run, *before, *zeros])) == 1


def test_zeros_that_are_true_are_silent(judged, steps) -> None:
    """A policy gradient has no gradient where the advantage is zero."""
    run = steps(20, norm=lambda i: float(i % 2), norm_before=lambda i: float(i % 2))
    assert judged(TRUE, [*run, *say(run, lambda step: step.norm)]) == []
    assert judged(TRUE, [*run, *say(run, lambda _: 0.0)]) == []


def test_a_norm_taken_after_clipping_is_a_note(judged, steps) -> None:
    """It can show no explosion; where clipping does not bind it is the same."""
    run = clipped(steps)
    (finding,) = judged(TRUE, [*run, *say(run, lambda step: step.norm)])
    assert finding.summary == "the gradient norm that `train` logs is the one after clipping"
    assert (finding.measured, finding.allowed, finding.rank) == (
        "1 (20 of 20 times)",
        "2",
        Rank.NOTE,
    )
    assert judged(TRUE, [*run, *say(run, lambda step: step.norm_before)]) == []
    loose = steps(20, clip="taken", clip_limit=10.0)
    assert judged(TRUE, [*loose, *say(loose, lambda step: step.norm)]) == []


@pytest.mark.parametrize("name", [NORM, "loss"])
def test_a_value_that_is_still_scaled(name: str, judged, steps) -> None:
    """The scaler multiplied it, and nobody divided."""
    run = steps(20, scale=lambda i: 1024.0 * (1 + (i > 9)))
    value = (lambda s: s.norm * s.scale) if name == NORM else (lambda s: s.loss * s.scale)
    (finding,) = judged(TRUE, [*run, *say(run, value, name)])
    word = "gradient norm" if name == NORM else "training loss"
    assert finding.summary == f"the {word} that `train` logs is still scaled by the gradient scaler"
    assert finding.rank is Rank.BROKEN
    plain = steps(20)
    assert judged(TRUE, [*plain, *say(plain, lambda step: 1024 * step.loss, name)]) == []


@pytest.mark.parametrize("value", [1e-3, 0.0])
def test_a_rate_that_is_not_the_one_in_force(value: float, judged, steps) -> None:
    """The one of the first step, or of the settings, and zero."""
    run = warmed(steps)
    (finding,) = judged(TRUE, [*run, *say(run, lambda _: value, "lr")])
    told = "does not follow the rate in force" if value else "is zero where the truth is not"
    assert finding.summary == f"the learning rate that `train` logs {told}"
    assert finding.rank is Rank.BROKEN
    assert finding.measured.startswith("0.001 (" if value else "0 (")


def test_rates_of_the_steps_around_are_true(judged, steps) -> None:
    """Schedulers are advanced before or after the log, and groups have rates of their own."""
    run = warmed(steps)
    for shift in (-1, 0, 1):
        rate = {step.step: run[min(max(step.step + shift, 0), 19)].rates[0] for step in run}
        assert judged(TRUE, [*run, *say(run, lambda s, r=rate: r[s.step], "learning_rate")]) == []
    groups = steps(20, rates=lambda i: (1e-3 * (1 - i / 25), 1e-4))
    assert judged(TRUE, [*groups, *say(groups, lambda _: 1e-4, "lr")]) == []
    flat = steps(20, rates=(1e-3,))
    assert judged(TRUE, [*flat, *say(flat, lambda _: 3e-3, "lr")]) == []
    assert judged(TRUE, [*run, *say(run, lambda _: 7e-3, "lr")]) == []
    assert judged(TRUE, [*run, *say(run, lambda _: 0.0, "lr", rounding=5e-3)]) == []


@pytest.mark.parametrize(("low", "expected"), [(0.95e-3, 0), (0.8e-3, 1)])
def test_a_rate_must_be_off_by_a_tenth(low: float, expected: int, judged, steps) -> None:
    """The rate falls once, and the first one is logged to the end."""
    run = steps(20, rates=lambda i: (1e-3 if i < 2 else low,))
    assert len(judged(TRUE, [*run, *say(run, lambda _: 1e-3, "lr")])) == expected
    turns = say(run, lambda step: 1e-3 + 1e-4 * (step.step % 2), "lr")
    assert judged(TRUE, [*run, *turns]) == []


def test_the_highest_rate_may_be_that_of_the_settings(judged, steps) -> None:
    """The warmup begins elsewhere, so that the first rate is not the one that is logged."""
    run = steps(20, rates=lambda i: (1e-3 * min(i + 1, 20 - i) / 10,))
    assert len(judged(TRUE, [*run, *say(run, lambda _: 1e-3, "lr")])) == 1


@pytest.mark.parametrize(
    "value",
    [
        lambda s: s.loss,
        lambda s: s.losses[-1],
        lambda s: s.losses[0] / s.weights[0],
        lambda s: s.loss / 2,
        lambda s: s.loss * 3.7,
        lambda s: 0.9 * s.loss,
    ],
    ids=["sum", "last", "undivided", "mean", "unknown factor", "smoothed"],
)
@pytest.mark.parametrize("late", [3, -3])
def test_losses_that_are_true_or_unknown(value, late: int, judged, steps) -> None:
    """Whatever a loop may mean by its loss, before or after the step."""
    run = steps(
        20, losses=lambda i: (0.4 * 0.9**i, 0.6 * 0.9**i), loss=lambda i: 0.9**i, weights=(0.5, 0.5)
    )
    assert judged(TRUE, [*run, *say(run, value, "train/loss", late)]) == []


def test_a_loss_of_zero_that_is_none(judged, steps) -> None:
    """A running loss that is printed after it was reset."""
    run = steps(20)
    (finding,) = judged(TRUE, [*run, *say(run, lambda _: 0.0, "loss")])
    assert finding.summary == "the training loss that `train` logs is zero where the truth is not"
    assert judged(TRUE, [*run, *say(run, lambda _: 0.0, "loss", rounding=5.0)]) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grad_norm", 1),
        ("Grad-Norm", 1),
        ("grad/norm", 1),
        ("/grad_norm:", 1),
        ("trainer/gnorm", 1),
        ("total_norm", 1),
        ("grad_2.0_norm_total", 1),
        ("grad_norm_clipped", 0),
        ("val/grad_norm", 0),
        ("param_norm", 0),
        ("val/loss", 0),
        ("avg_loss", 0),
        ("kl_loss", 0),
        ("lr-AdamW", 0),
        ("step", 0),
        ("", 0),
    ],
)
def test_names(name: str, expected: int, judged, steps) -> None:
    """Only names that leave no doubt."""
    run = steps(20)
    assert len(judged(TRUE, [*run, *say(run, lambda _: 0.0, name)])) == expected


@pytest.mark.parametrize(
    ("zeros", "expected"), [(2, 0), (10, 0), (11, 1), (20, 1)], ids=["few", "half", "most", "all"]
)
def test_most_of_the_logs_must_be_wrong(zeros: int, expected: int, judged, steps) -> None:
    """Three at least, and more than half of those that can be judged."""
    run = steps(20)
    said = say(run, lambda step: 0.0 if step.step < zeros else step.norm)
    assert len(judged(TRUE, [*run, *said])) == expected
    assert judged(TRUE, [*run, *said[:2]]) == []
    assert len(judged(TRUE, [*run, *say(run, lambda _: 0.0)[:3]])) == 1


@pytest.mark.parametrize(("windows", "expected"), [(2, 0), (7, 0), (10, 0), (11, 1)])
def test_zeros_between_steps_must_come_in_most_windows(windows, expected, judged, steps) -> None:
    """A few zeros beside true values are no habit."""
    run = steps(20)
    zeros = say(run[:windows], lambda _: 0.0, late=5)
    assert len(judged(TRUE, [*run, *say(run, lambda step: step.norm), *zeros])) == expected


def test_what_cannot_be_judged_does_not_count(judged, steps) -> None:
    """Steps of unknown norm, or of an infinite one, make neither a majority nor a truth."""
    run = steps(20, norm=lambda i: 0.5 if i > 11 else nan, norm_before=nan)
    assert len(judged(TRUE, [*run, *say(run, lambda _: 0.0)])) == 1
    wild = steps(20, norm=lambda i: 0.5 if i % 2 else inf, norm_before=nan, scale=2.0)
    assert judged(TRUE, [*wild, *say(wild, lambda _: 7.0)]) == []


def test_the_tolerance_is_a_share_of_the_value(ranks, steps) -> None:
    """Sixteen bits round a norm by as much as three thousandths."""
    run = clipped(steps)
    said = say(run, lambda step: 1.003 * step.norm)
    assert ranks(TRUE, [*run, *said]) == []
    assert ranks(TRUE, [*run, *said], **{f"limit:{TRUE}": 1e-2}) == ["note"]


def test_several_optimizers_may_each_be_meant(judged, steps) -> None:
    """A value that is true of one of them is true; a fault must be one of all."""
    critic = steps(20, optimizer="Adam")
    maker = steps(20, optimizer="Adam#2", norm=0.1, norm_before=0.1, clock=lambda i: 10 * i + 11)
    for value in (lambda s: s.norm, lambda _: 0.1):
        assert judged(TRUE, [*critic, *maker, *say(critic, value)]) == []
    assert len(judged(TRUE, [*critic, *maker, *say(critic, lambda _: 0.0)])) == 1
    late = steps(20, optimizer="Adam#2", clock=lambda i: 1000 + i)
    assert judged(TRUE, [*critic, *late, *say(critic, lambda _: 0.0)]) == []
    idle = steps(20, optimizer="Adam#2", norm=0.0, norm_before=0.0, clock=lambda i: 10 * i + 11)
    assert judged(TRUE, [*critic, *idle, *say(critic, lambda _: 0.0)]) == []


def test_what_was_thinned_out_is_not_judged(judged, steps) -> None:
    """The step that a value belongs to may be one that was not kept."""
    run = steps(20, span=4, step=lambda i: 4 * i)
    assert judged(TRUE, [*run, *say(run, lambda _: 0.0)]) == []
    gaps = steps(20, step=lambda i: 4 * i)
    assert judged(TRUE, [*gaps, *say(gaps, lambda _: 0.0)]) == []


def test_what_is_said_right_after_a_step_that_was_kept(ranks, steps) -> None:
    """It is known which step it belongs to, though those around it are not."""
    run = steps(20, span=4, step=lambda i: 4 * i)
    after = [replace(said, step=1 + 4 * i) for i, said in enumerate(say(run, lambda _: 0.0))]
    assert ranks(TRUE, [*run, *after]) == ["broken"]
    assert ranks(TRUE, [*run, *(replace(said, step=said.step + 1) for said in after)]) == []
    hand = [replace(step, optimizer="by hand") for step in run]
    assert ranks(TRUE, [*hand, *after]) == []


@pytest.mark.parametrize(
    "more",
    [{"norm": nan, "norm_before": nan}, {"skipped": True}, {"norm": 0.0, "norm_before": 0.0}],
    ids=["unknown", "skipped", "zero"],
)
def test_steps_without_a_norm(more: dict, judged, steps) -> None:
    """Where the truth is unknown, or zero too, nothing is said."""
    run = steps(20, **more)
    assert judged(TRUE, [*run, *say(run, lambda _: 0.0)]) == []


def test_edges(judged, steps) -> None:
    """No run, one step, logs without a run, and values that are no numbers."""
    run = steps(20)
    for said in ([], steps(1), say(run, lambda _: 0.0), [*run, *say(run, lambda _: nan)]):
        assert judged(TRUE, said) == []
    early = [Logged(name=NORM, value=0.0, step=0, clock=n) for n in range(9)]
    assert judged(TRUE, [*run, *early]) == []
