"""The judges of a schedule's length, of what a LambdaLR multiplies and of a plateau's metric."""

from dataclasses import replace
from math import cos, nan, pi

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Logged, Scheduler, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import HORIZONS, SCHEDULES

STOPPED = {"ended": "stopped"}
EPOCHS = {"batches": 10}
HALF = (0.5, 0.5)


def plan(length: int, calls: int, **more) -> Scheduler:
    """Write the scheduler of the only optimizer, with its length."""
    row = {
        "name": "CosineAnnealingLR",
        "setting": "T_max",
        "source": "/home/me/train.py:20",
        **more,
    }
    return Scheduler(optimizer="SGD", length=length, calls=calls, **row)


def test_a_schedule_in_steps_advanced_by_the_epoch_is_found(judged, steps) -> None:
    """Its length is that of the run, in another unit than the calls."""
    (finding,) = judged("schedule_fits_the_run", [*steps(60), plan(60, 6)])
    assert finding.summary == "a schedule of `train` is hardly begun when the run ends"
    assert (finding.measured, finding.allowed) == ("6 calls in 60 steps", "60 calls (T_max)")
    assert (finding.rank, finding.source) == (Rank.BROKEN, "/home/me/train.py:20")
    (finding,) = judged("schedule_fits_the_run", [*steps(60), plan(60, 6, advanced="train.py:31")])
    assert finding.why.endswith("after each optimizer.step() (train.py:31)")


@pytest.mark.parametrize(
    ("length", "calls"),
    [(600, 6), (40, 6), (60, 60), (60, 40), (6, 6), (1000, 60)],
    ids=["longer", "shorter", "whole", "most", "epochs", "trial"],
)
def test_lengths_that_fit_or_say_nothing(length: int, calls: int, ranks, steps) -> None:
    """Only the very length of the run tells that the unit is another."""
    assert ranks("schedule_fits_the_run", [*steps(60), plan(length, calls)]) == []


def test_a_run_whose_losses_nobody_knows_is_judged(ranks, steps) -> None:
    """A step without a known loss counts as one pass."""
    unknown = steps(60, loss=nan, losses=())
    assert ranks("schedule_fits_the_run", [*unknown, plan(60, 6)]) == [Rank.BROKEN]


def test_a_schedule_is_judged_at_its_end(ranks, steps) -> None:
    """A run that was stopped may have gone on; in few steps numbers agree by chance."""
    assert ranks("schedule_fits_the_run", [*steps(60), plan(60, 6)], STOPPED) == []
    assert ranks("schedule_fits_the_run", [*steps(12), plan(12, 3)]) == []


def test_micro_batches_are_another_unit_than_steps(ranks, steps) -> None:
    """A length in micro-batches is too long for steps, and one in steps too short for them."""
    run = steps(40, losses=(0.5, 0.5, 0.5, 0.5))
    assert ranks("schedule_fits_the_run", [*run, plan(160, 40)]) == ["broken"]
    assert ranks("schedule_fits_the_run", [*run, plan(40, 160)]) == ["broken"]
    assert ranks("schedule_fits_the_run", [*run, plan(160, 160)]) == []


def test_steps_whose_rates_nobody_knows(ranks, steps) -> None:
    """A schedule that is over is judged by what else is known."""
    half = [replace(step, rates=() if step.step % 2 else (0.0,)) for step in steps(40)]
    assert ranks("schedule_fits_the_run", [*half, plan(4, 40, base=(0.1,))]) == []


def test_a_run_that_stopped_early_or_went_on(ranks, steps) -> None:
    """Half of the epochs have as many micro-batches as a schedule in steps is long."""
    run, name = steps(40, losses=(0.5, 0.5)), "schedule_fits_the_run"
    batches = {"batches": 40}  # two epochs
    assert ranks(name, [*run, plan(80, 40)], batches) == ["broken"]
    assert ranks(name, [*run, plan(80, 40, planned=(2,))], batches) == ["broken"]
    assert ranks(name, [*run, plan(80, 40, planned=(2, 4))], batches) == ["broken"]
    assert ranks(name, [*run, plan(80, 40, planned=(4,))], batches) == []
    assert ranks(name, [*run, plan(80, 40, planned=(1,))], batches) == ["broken"]
    assert ranks(name, [*run, plan(80, 40, planned=(4,))]) == ["broken"]  # of no known epochs
    assert ranks(name, [*run, plan(80, 40, place=80)], batches) == []
    assert ranks(name, [*run, plan(80, 40, place=40)], batches) == ["broken"]


def test_a_schedule_in_epochs_advanced_by_the_step_is_found(ranks, steps) -> None:
    """Where the loader was gone through as often as the schedule is long."""
    assert ranks("schedule_fits_the_run", [*steps(60), plan(6, 60)], EPOCHS) == ["broken"]
    assert ranks("schedule_fits_the_run", [*steps(60), plan(9, 60)], EPOCHS) == []


def test_samples_are_another_unit_than_batches(judged, ranks, steps) -> None:
    """A length that is the epochs times the samples, to the sample, where batches are counted."""
    served = EPOCHS | {"samples": 317}
    (finding,) = judged("schedule_fits_the_run", [*steps(60), plan(6 * 317, 60)], served)
    why = "its length is the number of samples, and each batch advances it: count the batches in"
    assert (finding.why, finding.rank) == (f"{why} its length", Rank.BROKEN)
    assert ranks("schedule_fits_the_run", [*steps(60), plan(6 * 317 + 1, 60)], served) == []
    assert ranks("schedule_fits_the_run", [*steps(60), plan(6 * 317, 57)], served) == []


def test_a_formula_that_hardly_lowers_a_rate_is_noted(judged, ranks, steps) -> None:
    """Where it goes along a line to zero, in equal advances that are far more than those made."""
    hand = steps(60, rates=lambda i: (0.1 * (1 - i / 7680),))
    (finding,) = judged("schedule_fits_the_run", hand)
    assert finding.summary == "the rate of `train` has hardly been lowered when the run ends"
    assert finding.measured == "59 advances, to a rate of 0.09923"
    assert (finding.allowed, finding.rank) == ("7680 advances, to a rate of 0", Rank.NOTE)
    for factor in (lambda i: 1 - i / 580, lambda i: 0.999**i, lambda i: 1 + i / 7680):
        run = steps(60, rates=lambda i, factor=factor: (0.1 * factor(i),))
        assert ranks("schedule_fits_the_run", run) == []
    assert ranks("schedule_fits_the_run", hand, STOPPED) == []
    assert ranks("schedule_fits_the_run", [*hand, plan(0, 60, name="LinearLR")]) == []


def test_a_formula_in_micro_batches_is_found(judged, ranks, steps) -> None:
    """Where its decay is over after so much of the run as a micro-batch is of a step."""

    def run(decay: int, batches: int = 4) -> list[Step]:
        """Return a run of 120 steps whose rate is lowered in the first of them."""
        rates = lambda i: (0.1 * (1 - 0.9 * min(1.0, i / decay)),)  # noqa: E731 shorter so
        return steps(120, losses=(0.5,) * batches, rates=rates)

    (finding,) = judged("schedule_fits_the_run", run(30))
    assert finding.summary == "the rate of `train` has come to its end long before the run"
    assert finding.measured == "30 steps, of 120 with 4 micro-batches each"
    assert (finding.allowed, finding.rank) == ("120 steps", Rank.BROKEN)
    assert ranks("schedule_fits_the_run", run(60, 2)) == ["note"]
    for other in (run(24), run(36), run(120), run(30, 1), run(30, 2)):
        assert ranks("schedule_fits_the_run", other) == []
    assert ranks("schedule_fits_the_run", run(30), STOPPED) == []
    turns = [replace(s, step=2 * s.step, optimizer="A") for s in run(30)]
    others = [replace(s, step=2 * s.step + 1, optimizer="B", rates=(1.0,)) for s in turns]
    between = sorted([*turns, *others], key=lambda step: step.step)
    assert ranks("schedule_fits_the_run", between) == ["broken"]


def test_only_rates_without_a_scheduler_are_those_of_a_formula(steps) -> None:
    """Two optimizers with a rate each change none; a scheduler without a length is not judged."""
    constant = [*steps(9, optimizer="A"), *steps(9, optimizer="B", rates=(0.5,))]
    changing = steps(9, rates=lambda i: (0.1 / (1 + i),))
    assert HORIZONS(constant)
    assert not HORIZONS(changing)
    assert HORIZONS([*changing, plan(0, 9, name="StepLR")])


def test_a_rate_that_climbs_again_is_found(ranks, steps) -> None:
    """A function that knows its length is broken by it; a cosine of torch's may be meant."""
    run = steps(60, rates=lambda i: (0.5 + 0.5 * cos(pi * i / 20),))
    assert ranks("schedule_fits_the_run", [*run, plan(20, 60, base=(1.0,))]) == ["broken"]
    assert ranks("schedule_fits_the_run", [*run, plan(20, 60)]) == ["note"]
    leap = steps(60, rates=lambda i: (1 - i % 20 / 20,))
    assert ranks("schedule_fits_the_run", [*leap, plan(20, 60, base=(1.0,))]) == []


def test_a_function_may_multiply_the_epochs(ranks, steps) -> None:
    """Only where the rate stays as it is after that number is it the length of the schedule."""
    made = plan(6, 60, name="LambdaLR", setting="epochs", base=(0.1,))
    for factor, rank in (
        (lambda i: 1 - i / 60, []),
        (lambda i: min(1, i / 20) * (1 - i / 60), []),
        (lambda i: max(0.0, 1 - i / 6), ["broken"]),
        (lambda i: 1 - i / 6, ["broken"]),
        (lambda i: max(0.1, 1 - i / 6), ["broken"]),
    ):
        run = steps(60, rates=lambda i, factor=factor: (0.1 * factor(i),))
        assert ranks("schedule_fits_the_run", [*run, made], EPOCHS) == rank


def test_milestones_of_epochs_are_not_steps(ranks, steps) -> None:
    """All pass in the first epoch; those in steps may pass there too, but not so early."""
    for length, rank in ((5, ["broken"]), (9, []), (30, [])):
        run = [*steps(60), plan(length, 60, setting="milestones")]
        assert ranks("schedule_fits_the_run", run, EPOCHS) == rank
        assert ranks("schedule_fits_the_run", run) == []


@pytest.mark.parametrize(
    ("size", "factor", "rank"),
    [(5, 0.6, ["broken"]), (5, 0.8, []), (9, 0.3, []), (30, 0.05, [])],
    ids=["epochs", "little", "more than the epochs", "steps"],
)
def test_steps_of_a_schedule_that_are_epochs(size: int, factor: float, rank, ranks, steps) -> None:
    """It is advanced by the step, and at the end nothing is left of the rate."""
    lowered = steps(60, rates=lambda i: (0.1 * factor ** (i // size),))
    run = [*lowered, plan(size, 60, setting="step_size")]
    assert ranks("schedule_fits_the_run", run, EPOCHS) == rank
    assert ranks("schedule_fits_the_run", run) == []


def test_a_scheduler_that_nothing_could_advance_is_found(ranks, steps) -> None:
    """In several epochs; behind a switch, or in a trial, it is a note."""
    for inert, epochs, rank in ((True, 10, "broken"), (False, 10, "note"), (True, 60, "note")):
        run = [*steps(60), plan(0, 0, inert=inert)]
        assert ranks("rate_follows_schedule", run, {"batches": epochs}) == [rank]
        stopped = {"batches": epochs, **STOPPED}
        # Within two epochs nobody knows whether it would be advanced after one of them.
        noted = ["note"] if epochs == 10 else []
        assert ranks("rate_follows_schedule", run, stopped) == noted


@pytest.mark.parametrize(
    ("ended", "calls", "judges"),
    [("stopped", 0, False), ("stopped", 1, True), ("finished", 0, True)],
)
def test_a_run_that_is_stopped_before_its_schedule_begins_has_nothing_to_judge(
    ended: str, calls: int, judges: bool, steps
) -> None:
    """A pass would be false comfort: perhaps it is never advanced."""
    run = Trace("run", (*steps(60), plan(0, calls)), {"ended": ended})
    assert bool(SCHEDULES(run)) is not judges


@pytest.mark.parametrize(
    ("base", "factor", "calls", "rank"),
    [
        (0.01, lambda i: 0.01 / (1 + i), 60, ["broken"]),
        (0.01, lambda i: 3e-4, 60, ["note"]),
        (0.01, lambda i: 0.01 * min(1, (i + 1) / 100), 60, []),
        (0.1, lambda i: 0.1 if i < 5 else 0.2, 60, []),
        (1.0, lambda i: 1e-3 / (1 + i), 60, []),
        (0.01, lambda i: 0.01, 1, []),
    ],
    ids=["squared", "tiny", "warmup", "rising", "base of one", "hardly called"],
)
def test_a_function_that_returns_a_rate(
    base: float, factor, calls: int, rank, ranks, steps
) -> None:
    """The largest factor is told from a rate where it is the base rate, or a hundredth."""
    run = steps(60, rates=lambda i: (base * factor(i),))
    made = Scheduler(name="LambdaLR", optimizer="SGD", calls=calls, base=(base,))
    assert ranks("lambda_returns_a_factor", [*run, made]) == rank


def rule(mode: str, expression: str, values) -> Scheduler:
    """Write a plateau rule that was told some values."""
    told = tuple((100 * (n + 1) + 1, value) for n, value in enumerate(values))
    row = {"name": "ReduceLROnPlateau", "optimizer": "SGD", "calls": len(told)}
    return Scheduler(mode=mode, expression=expression, metrics=told, **row)


@pytest.mark.parametrize(
    ("mode", "expression", "values", "rank"),
    [
        ("min", "val_acc", (0.3, 0.4, 0.5), ["broken"]),
        ("min", "r10", (0.3, 0.4, 0.5), ["broken"]),
        ("min", "metrics['mAP50']", (0.3, 0.4, 0.5), ["broken"]),
        ("min", "hits@3", (0.3, 0.4, 0.5), ["broken"]),
        ("min", "p95", (0.3, 0.4, 0.5), []),
        ("min", "err10", (0.3, 0.4, 0.5), []),
        ("max", "metrics['val/loss']", (0.5, 0.4, 0.3), ["broken"]),
        ("max", "val_acc", (0.3, 0.4, 0.5), []),
        ("min", "val_loss", (0.3, 0.4, 0.5), []),
        ("min", "score", (0.3, 0.4, 0.5), []),
        ("min", "acc_loss", (0.3, 0.4, 0.5), []),
        ("min", "acc", (0.5, 0.4, 0.3), []),
        ("max", "loss", (-0.5, -0.4, -0.3), []),
        ("min", "val_acc", (0.3, 0.4), []),
    ],
)
def test_a_metric_improves_in_the_direction_of_the_mode(
    mode: str, expression: str, values, rank, ranks, steps
) -> None:
    """By its name, unless that says both or its course says otherwise."""
    assert ranks("plateau_metric_fits_mode", [*steps(40), rule(mode, expression, values)]) == rank


def test_a_metric_is_known_by_what_the_script_says(ranks, steps) -> None:
    """The numbers themselves are logged under a name that tells what they are."""
    values = (0.3125, 0.4375, 0.5625)
    said = [
        Logged(name="val_acc", value=round(v, 2), step=1, rounding=0.005, clock=100 * (n + 1) + 5)
        for n, v in enumerate(values)
    ]
    run = [*steps(40), rule("min", "score", values)]
    assert ranks("plateau_metric_fits_mode", [*run, *said]) == ["broken"]
    assert ranks("plateau_metric_fits_mode", [*run, *said[:2]]) == []


def test_a_decay_that_is_over_in_a_moment_is_found(judged, steps) -> None:
    """A factor for each epoch, taken in each step of several epochs."""
    run = [*steps(200, rates=lambda i: (0.1 * 0.9**i,)), plan(0, 200, name="ExponentialLR")]
    (finding,) = judged("rate_lasts_for_the_run", run, EPOCHS)
    assert finding.summary == "the learning rate of `train` is gone long before the run ends"
    assert (finding.at, finding.rank) == ("step 66", Rank.BROKEN)
    assert finding.measured == "below 0.001 of the highest rate in 134 of 200 steps"


@pytest.mark.parametrize(
    ("rate", "rank"),
    [
        (lambda i: 0.96**i, ["note"]),
        (lambda i: 1 / (1 + i), []),
        (lambda i: 0.5 + 0.5 * cos(pi * i / 600), []),
        (lambda i: 1.0 if i < 20 else 1e-6, []),
        (lambda i: 0.97 ** (600 - i), []),
    ],
    ids=["unknown epochs", "inverse", "cosine", "leap", "range test"],
)
def test_decays_that_last_or_are_meant(rate, rank, ranks, steps) -> None:
    """What falls slowly, in one leap, or not at all is left alone."""
    assert ranks("rate_lasts_for_the_run", steps(400, rates=lambda i: (rate(i),))) == rank


def climb(rate: float = 0.001, **more) -> Probe:
    """Write that the last rate is below the one that the optimizer was made with."""
    return Probe(probe="base rate", measured=rate, reference=0.1, label="SGD", **more)


def warm(steps, last: int = 6, by: float = 0.001) -> list:
    """Write a run of 120 steps whose rate climbs by so much at each 20th of them, to a last one."""
    return steps(120, rates=lambda i: (by * (1 + min(i // 20, last)),))


def test_a_warmup_in_steps_advanced_by_the_epoch_is_found(judged, steps) -> None:
    """The optimizer's own rate would have been reached within the steps of the run."""
    run = [*warm(steps), plan(0, 6, setting="", name="LambdaLR"), climb()]
    (finding,) = judged("warmup_ends", run)
    assert finding.measured == "5 advances in 120 steps, to a rate of 0.006"
    assert finding.allowed == "99 advances, to the 0.1 it is for"
    assert (finding.rank, finding.source) == (Rank.BROKEN, "/home/me/train.py:20")


def test_a_formula_or_a_short_warmup_is_only_noted(ranks, steps) -> None:
    """A rate that is set by hand may be for another top; 25 advances may be epochs of a trial."""
    scheduler = plan(0, 6, setting="", name="LambdaLR")
    assert ranks("warmup_ends", [*warm(steps), climb()]) == ["note"]
    assert ranks("warmup_ends", [*warm(steps, by=0.004), scheduler, climb()]) == ["note"]


def test_warmups_that_end_or_could_not_are_fine(ranks, steps) -> None:
    """Most of the way was gone, or no unit would have been enough, or the rate is another's."""
    scheduler = plan(0, 6, setting="", name="LambdaLR")
    for run in (
        warm(steps, by=0.01),  # 9 advances
        warm(steps, by=0.0005),  # 199 advances
        warm(steps, by=0.00137),  # passes the rate by
        warm(steps, last=3),  # three advances
        steps(120, rates=lambda i: (0.001 * (1 + i % 40 // 20),)),  # falls now and then
        steps(120, rates=lambda i: (0.001 * 1.1 ** (i // 20),)),  # by a factor
        steps(120, rates=lambda i: (0.001 if i < 60 else nan,)),
        steps(
            120, rates=lambda i: (5e-324 * (1 + i // 20),)
        ),  # more advances than there are floats
    ):
        assert ranks("warmup_ends", [*run, scheduler, climb()]) == []
    assert ranks("warmup_ends", [*warm(steps), scheduler, climb()], STOPPED) == []
    assert ranks("warmup_ends", [*warm(steps), scheduler]) == []


def test_a_warmup_with_a_length_is_judged_by_that(ranks, steps) -> None:
    """What schedule_fits_the_run says is not said twice."""
    assert ranks("warmup_ends", [*warm(steps), plan(120, 6), climb()]) == []


@pytest.mark.parametrize(
    ("name", "direction", "rank"),
    [("val_acc", -1.0, ["broken"]), ("val_acc", 1.0, []), ("val_loss", 1.0, ["broken"])],
)
def test_a_model_is_chosen_in_the_direction_of_its_metric(ranks, steps, name, direction, rank):
    """An accuracy under mode="min" keeps the worst model."""
    chosen = Probe(probe="chosen", measured=direction, label=f"ModelCheckpoint {name}")
    said = [Logged(name=name, value=0.5 + 0.05 * i, step=10 * i) for i in range(4)]
    assert ranks("plateau_metric_fits_mode", [*steps(40), *said, chosen]) == rank
