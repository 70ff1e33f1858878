"""The judges of the loss: finite, of the parameters, and falling."""

from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Evaluation

TEACHER = Evaluation(step=0, module="Teacher", routine=True)


def test_a_lost_loss_names_its_step_and_culprit(judged, steps) -> None:
    """Of all steps that are nan the first is named, with what was lost first in it."""
    culprit = "output of `Net.attention`"
    run = steps(20, loss=lambda i: nan if i >= 12 else 1.0, culprit=lambda i: culprit * (i == 12))
    (finding,) = judged("loss_is_finite", run)
    assert finding.summary == "the loss of `train` is not finite"
    assert (finding.at, finding.measured, finding.allowed) == ("step 12", "nan", "finite")
    assert finding.why.endswith(culprit)
    assert (finding.rank, finding.source) == (Rank.BROKEN, "/home/me/train.py:12")


@pytest.mark.parametrize("losses", [(1.0, nan), (inf,), ()], ids=["micro-batch", "inf", "sum"])
def test_one_lost_value_is_enough(losses: tuple, judged, steps) -> None:
    """A single step, and one micro-batch of several, is judged; without a culprit why hedges."""
    (finding,) = judged("loss_is_finite", steps(1, losses=losses, loss=sum(losses, 0) or inf))
    assert finding.measured in ("nan", "inf")
    assert "perhaps" in finding.why


def test_the_first_of_several_optimizers_is_named(judged, steps) -> None:
    """With two optimizers the finding is one, of the earlier step, and names the optimizer."""
    maker = steps(20, optimizer="Adam", loss=lambda i: nan if i >= 9 else 1.0)
    critic = steps(
        20, optimizer="Adam#2", clock=lambda i: 10 * i + 5, loss=lambda i: nan if i >= 9 else 1.0
    )
    (finding,) = judged("loss_is_finite", [*maker, *critic])
    assert finding.at == "step 9 of Adam#2"


def test_an_unknown_loss_is_not_a_lost_one(ranks, steps) -> None:
    """Nan without a value that was handed to backward says that nothing is known."""
    assert ranks("loss_is_finite", steps(20, loss=nan, losses=())) == []


@pytest.mark.parametrize(("skips", "expected"), [(9, []), (10, ["broken"])])
def test_skipped_steps_are_fine_until_they_are_all(skips: int, expected, judged, steps) -> None:
    """A scaler that skips every step from some point on hides that the run is over."""
    run = steps(40, skipped=lambda i: i >= 40 - skips, loss=lambda i: nan if i >= 30 else 1.0)
    run = [step for step in run if step.skipped or step.step < 30]
    found = judged("loss_is_finite", run)
    assert [f.rank.value for f in found] == expected
    assert [(f.at, f.measured) for f in found] == (
        [("step 30 and all after it", "10 steps skipped in a row")] if expected else []
    )


def test_a_scaler_may_skip_steps_whose_loss_is_sound(ranks, steps) -> None:
    """Gradients that overflow to the end are another judgement."""
    assert ranks("loss_is_finite", steps(40, skipped=lambda i: i > 20)) == []


def test_a_loss_without_parameters_is_found(judged, steps) -> None:
    """Backward ran each time and no parameter ever got a gradient."""
    (finding,) = judged("loss_depends_on_parameters", steps(20, received=0, norm=0.0, update=0.0))
    assert finding.summary == "the loss of `train` reaches no parameter of its optimizer"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 0 and all after it",
        "0 of 4 parameters have a gradient",
        "at least 1 of 4",
        Rank.BROKEN,
    )


@pytest.mark.parametrize(
    "more",
    [
        {"received": lambda i: int(i == 7)},
        {"losses": (), "loss": nan},
        {"held": 0},
        {"norm": 0.5},
        {"update": 0.1},
        {"optimizer": "by hand"},
        {"order": ("backward", "zero")},
        {"skipped": True},
    ],
    ids=["one step", "no backward", "frozen", "assigned", "moved", "by hand", "cleared", "skipped"],
)
def test_no_gradient_may_be_meant_or_be_another_fault(more: dict, ranks, steps) -> None:
    """What has a gradient, needs none or lost it again is not cut off."""
    run = steps(20, **{"received": 0, "norm": nan, "update": nan, **more})
    assert ranks("loss_depends_on_parameters", run) == []


@pytest.mark.parametrize(("count", "expected"), [(1, "note"), (9, "note"), (10, "broken")])
def test_one_of_two_optimizers_may_wait_for_a_while(count: int, expected: str, judged, steps):
    """A generator whose loss is detached is found; a few steps of it are a note."""
    maker = steps(count, optimizer="Adam", received=0, norm=0.0, update=nan)
    (finding,) = judged("loss_depends_on_parameters", [*maker, *steps(count)])
    assert (finding.rank.value, finding.at) == (expected, "step 0 of Adam and all after it")


def test_a_single_step_without_a_gradient_is_judged(ranks, steps) -> None:
    """All steps of a run of one step are one step."""
    assert ranks("loss_depends_on_parameters", steps(1, received=0, norm=nan, update=nan)) == [
        "broken"
    ]


def test_a_promised_fall_is_compared_robustly(judged, steps) -> None:
    """The medians of the first and last tenth are compared, whatever one batch does."""
    run = steps(40, loss=lambda i: 0.1 if i == 39 else 2.0 - i / 400)
    (finding,) = judged("loss_falls", run, falls=0.2)
    assert finding.summary == "the loss of `train` does not fall as promised"
    assert (finding.at, finding.rank) == ("step 0 to 39", Rank.BROKEN)
    assert finding.measured == "4.51 %  (from 1.996 to 1.906)"
    assert finding.allowed == "at least 20 %"
    assert judged("loss_falls", run, falls=0.04) == []


@pytest.mark.parametrize(
    ("loss", "falls", "expected"),
    [
        (lambda i: -1.0 - i, 0.5, []),
        (lambda i: -10.0 - i / 10, 0.5, ["broken"]),
        (lambda i: 0.0, 0.5, []),
        (float, 0.5, ["broken"]),
        (lambda i: i / 3 - 1 / 3, 0.5, ["broken"]),
        (lambda i: nan, 0.5, []),
    ],
    ids=["negative", "negative, flat", "zero", "from one", "from zero", "unknown"],
)
def test_promised_falls_of_other_signs(loss, falls: float, expected, ranks, steps) -> None:
    """A share of a negative first value is a share of its size."""
    assert ranks("loss_falls", steps(30, loss=loss, losses=()), falls=falls) == expected


def test_a_shorter_last_window_is_no_fall(ranks, steps) -> None:
    """What was handed to backward is compared per micro-batch, not its sum."""
    micro = {"losses": lambda i: (0.5,) * (4 if i < 9 else 1), "loss": lambda i: 2 if i < 9 else 0}
    assert ranks("loss_falls", steps(10, **micro), falls=0.2) == ["broken"]


def test_the_mean_of_huge_losses_is_known(ranks, steps) -> None:
    """Two micro-batches of 9e307 have a mean, though their sum is no number."""
    assert ranks("loss_falls", steps(30, losses=(9e307, 9e307)), falls=0.2) == ["broken"]


def test_a_single_step_cannot_fall(ranks, steps) -> None:
    """One step promises nothing; two can be compared."""
    assert ranks("loss_falls", steps(1), falls=0.2) == []
    assert ranks("loss_falls", steps(2, loss=lambda i: 1.0), falls=0.2) == ["broken"]


def test_a_thinned_run_is_cut_by_steps_not_by_rows(judged, steps) -> None:
    """The last tenth of the steps is one row where it stands for that many."""
    run = steps(20, loss=lambda i: 1.0 if i < 19 else 0.5, span=lambda i: 1 if i < 19 else 100)
    assert judged("loss_falls", run, falls=0.4) == []


def flat(index: int, noise) -> float:
    """Return a loss like that of the post-mortem: a large constant, and a little noise."""
    return 275_000.0 * (1 + 3e-4 * noise(index))


def test_a_flat_loss_is_noted_without_a_promise(judged, steps, noise) -> None:
    """All quarters within a thousandth, and the steps in them: nothing is being learned."""
    (finding,) = judged("loss_falls", steps(50, loss=lambda i: flat(i, noise)))
    assert finding.summary == "the loss of `train` is flat"
    assert finding.rank is Rank.NOTE
    assert finding.measured.endswith("% between the quarters of the run")
    assert finding.allowed == "more than 0.1 %"


@pytest.mark.parametrize(
    "more",
    [
        {"count": 49},
        {"loss": lambda i: 1.02 if i == 0 else 1.0},
        {"loss": lambda i: 1.0 + 0.005 * (0, 1, 0, -1)[i % 4]},
        {"loss": lambda i: 1.0 - 1e-4 * i},
        {"rates": (0.0,)},
        {"rates": lambda i: (1e-5 * i,)},
        {"loss": -1.0},
        {"loss": 0.0},
    ],
    ids=["short", "fell at once", "noisy", "falls", "no rate", "in its warmup", "sign", "zero"],
)
def test_a_loss_that_only_seems_flat(more: dict, ranks, steps) -> None:
    """What is short, noisy, still warming up or had its fall at the start is left alone."""
    more = {"count": 60, "loss": 1.0, **more}
    assert ranks("loss_falls", steps(**more)) == []


def test_a_flat_loss_of_two_optimizers_is_left_alone(ranks, steps) -> None:
    """The losses of a GAN say nothing, not even when they stand still."""
    run = [*steps(60, loss=1.0), *steps(60, loss=1.0, optimizer="Adam#2")]
    assert ranks("loss_falls", run) == []
    assert ranks("loss_falls", steps(60, loss=1.0)) == ["note"]


@pytest.mark.parametrize(
    ("rise", "more", "expected"),
    [
        (3.0, {}, ["note"]),
        (1.9, {}, []),
        (3.0, {"weights": ()}, []),
        (3.0, {"weights": lambda i: (i / 60,)}, []),
        (150.0, {"weights": ()}, ["note"]),
    ],
    ids=["plain", "a little", "unknown terms", "a term fades in", "bursts"],
)
def test_a_rising_loss(rise: float, more: dict, expected, judged, ranks, steps) -> None:
    """Twice as high is noted where the loss is one function throughout, else a hundred times."""
    run = steps(80, loss=lambda i: 1.0 if i < 40 else rise, **more)
    assert ranks("loss_falls", run) == expected
    assert ranks("loss_falls", [*run, TEACHER]) == []
    if expected:
        (finding,) = judged("loss_falls", run)
        assert finding.summary == "the loss of `train` rises"
        assert finding.measured == f"{rise:g} times  (from 1 to {rise:g})"


def test_rounding_noise_after_convergence_does_not_rise(ranks, steps) -> None:
    """A loss that ends far below its beginning may triple down there."""
    run = steps(80, loss=lambda i: 1.0 if i < 2 else 1e-12 if i < 40 else 1e-11)
    assert ranks("loss_falls", run) == []


def test_a_burst_at_the_end_is_no_rise(ranks, steps) -> None:
    """The last quarter is compared, not the last step."""
    run = steps(80, loss=lambda i: 500.0 if i > 75 else 1.0 + 0.01 * (i % 7))
    assert ranks("loss_falls", run) == []
