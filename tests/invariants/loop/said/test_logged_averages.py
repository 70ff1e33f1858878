"""The judge of the averages that a script says of its losses."""

from dataclasses import replace

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Evaluation, Logged
from trainguard.events.probe import Probe

MEANS = (
    (1.25, 1.5, 1.9, 1.1),
    (0.95, 1.3, 1.45, 0.85),
    (0.7, 1.0, 1.2, 0.55),
    (0.6, 0.8, 1.0, 0.5),
)
SIZES = (32, 32, 32, 8)


def evaluations(reduction: str = "mean", passes: int = 4) -> list[Evaluation]:
    """Write an evaluation after every five steps."""
    return [
        Evaluation(
            step=5 * n + 5,
            clock=50 * n + 51,
            module="Net",
            passes=passes,
            count=4,
            loss=sum(values) / 4,
            weighted=sum(v * s for v, s in zip(values, SIZES, strict=True)) / sum(SIZES),
            last=values[-1],
            samples=sum(SIZES),
            reduction=reduction,
            measures=True,
        )
        for n, values in enumerate(MEANS)
    ]


def said(values, name: str = "val_loss", rounding: float = 5e-5) -> list[Logged]:
    """Write what is said after each evaluation."""
    return [
        Logged(name=name, value=value, step=5 * n + 5, rounding=rounding, clock=50 * n + 58)
        for n, value in enumerate(values)
    ]


def totals() -> list[float]:
    """Return the sum of each evaluation."""
    return [sum(values) for values in MEANS]


def test_a_mean_divided_by_samples_is_found(judged, steps) -> None:
    """The truth that is shown is the mean over batches."""
    wrong = said([total / 104 for total in totals()])
    (finding,) = judged("logged_averages_are_true", [*steps(20), *evaluations(), *wrong])
    assert finding.summary.startswith("the mean loss that `train` logs is divided by the number of")
    assert finding.measured == "0.05529 (4 of 4 times)"
    assert finding.allowed == "1.438, the mean of 4 losses"
    assert finding.rank == Rank.BROKEN


def test_terms_of_samples_divided_by_batches_are_found(judged, steps) -> None:
    """Each loss is multiplied by the size of its batch, and their sum divided by four."""
    wrong = said([e.weighted * 104 / 4 for e in evaluations()])
    (finding,) = judged("logged_averages_are_true", [*steps(20), *evaluations(), *wrong])
    assert "though each term is multiplied by its batch" in finding.summary


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ([total / 10 for total in totals()], ["broken"]),
        ([total / 3 for total in totals()], ["broken"]),
        ([total / 5 for total in totals()], ["broken"]),
        ([sum(totals()[: n + 1]) / 4 for n in range(4)], ["broken"]),
        ([sum(totals()[: n + 1]) / 4 / (n + 1) for n in range(4)], ["broken"]),
        (totals(), ["note"]),
        ([values[-1] for values in MEANS], ["note"]),
        ([values[-1] / 4 for values in MEANS], ["broken"]),
        ([total / 4 for total in totals()], []),
        ([e.weighted for e in evaluations()], []),
        ([0.01, 0.02, 0.03, 0.04], []),
        ([total / 104 for total in totals()][:2], []),
    ],
)
def test_what_an_average_may_be(values, rank, ranks, steps) -> None:
    """Known mistakes are found, means are not, and neither is what matches nothing."""
    run = [*steps(20), *evaluations(), *said(values)]
    assert ranks("logged_averages_are_true", run, {"batches": 10}) == rank


def test_what_is_said_for_each_batch_is_no_mean(ranks, steps) -> None:
    """A loss that is handed over with every batch, as to Lightning, is averaged elsewhere."""
    each = [
        Logged(name="val_loss", value=value, step=5 * n + 5, clock=50 * n + 52 + k)
        for n, values in enumerate(MEANS)
        for k, value in enumerate(values)
    ]
    assert ranks("logged_averages_are_true", [*steps(20), *evaluations(), *each]) == []


def test_sums_are_divided_by_samples(ranks, steps) -> None:
    """That is right of sums; the batch size of training is another number."""
    summed = [*steps(20, batch=(13,)), *evaluations("sum")]
    right, wrong = ([total / by for total in totals()] for by in (104, 4 * 13))
    assert ranks("logged_averages_are_true", [*summed, *said(right)]) == []
    assert ranks("logged_averages_are_true", [*summed, *said(wrong)]) == ["broken"]


def test_several_losses_for_each_pass_are_not_added_up(ranks, steps) -> None:
    """With what weights is not known; nor is a coarse number one or the other."""
    wrong = [total / 104 for total in totals()]
    run = [*steps(20), *evaluations(passes=2), *said(wrong)]
    assert ranks("logged_averages_are_true", run) == []
    coarse = [*steps(20), *evaluations(), *said([0.06, 0.04, 0.03, 0.03], rounding=0.005)]
    assert ranks("logged_averages_are_true", coarse) == []


def test_epochs_of_training_are_averaged_too(ranks, steps) -> None:
    """A mean over the epoch is true, and a sum of means over all samples is not."""
    run = steps(20)
    sums = [sum(step.loss for step in run[5 * n : 5 * n + 5]) for n in range(4)]
    for by, rank in ((5, []), (5 * 32, ["broken"])):
        words = said([total / by for total in sums], "train_loss")
        assert ranks("logged_averages_are_true", [*run, *words]) == rank
    last = said([run[5 * n + 4].loss / 5 for n in range(4)], "train_loss")
    assert ranks("logged_averages_are_true", [*run, *last]) == ["broken"]
    grown = said([sum(sums[: n + 1]) / 5 for n in range(4)], "train_loss")
    assert ranks("logged_averages_are_true", [*run, *grown]) == ["broken"]


def accumulated(value, *, times: int = 3, divisor: float = 4.0, rounding: float = 5e-5) -> list:
    """Write what is said of the training after every five steps, and by what losses are divided."""
    divided = Probe(probe="divided loss", measured=divisor, reference=64.0)
    return [*said([value(n) for n in range(times)], "train_loss", rounding), divided]


def parts(index: int) -> tuple[float, ...]:
    """Return the four losses of a step, each divided by four."""
    return tuple((2 - 0.1 * index + 0.3 * place) / 4 for place in range(4))


def mean_of(n: int) -> float:
    """Return the mean of the divided losses of five steps."""
    return sum(loss for index in range(5 * n, 5 * n + 5) for loss in parts(index)) / 20


def test_a_mean_of_divided_losses_is_found(judged, steps) -> None:
    """It is four times too small, where each loss is divided to be accumulated."""
    run = steps(15, losses=parts)
    (finding,) = judged("logged_averages_are_true", [*run, *accumulated(mean_of)])
    said = "the mean loss that `train` logs is that of losses that were divided"
    assert (finding.summary, finding.rank) == (said, Rank.BROKEN)
    assert finding.why == "each is divided by 4 to be accumulated: add up what it was before"


def test_means_before_they_are_divided_are_left_alone(ranks, steps) -> None:
    """As are those of another divisor, said once, or rounded to two digits."""
    run = steps(15, losses=parts)
    for told in (
        accumulated(lambda n: 4 * mean_of(n)),
        accumulated(mean_of, divisor=3.0),
        accumulated(mean_of, times=1),
        accumulated(mean_of, rounding=5e-3),
    ):
        assert ranks("logged_averages_are_true", [*run, *told]) == []


def of_terms(by: float, reduction: str = "mean") -> list[Evaluation]:
    """Write evaluations of three terms for each of four passes, as the training adds them up."""
    return [
        replace(
            one,
            count=12,
            loss=one.loss / 2,
            samples=3 * one.samples,
            mixed=one.loss,
            mixed_weighted=one.weighted,
            mixed_by=by,
            mixed_samples=one.samples,
        )
        for one in evaluations(reduction)
    ]


def test_several_terms_are_added_up_as_in_the_training(judged, steps) -> None:
    """As they are, or divided as they are learned."""
    for by in (1.0, 0.25, 1 / 32):
        for scale in (1.0, by):
            wrong = said([scale * total / 104 for total in totals()], rounding=5e-7)
            trained = [replace(step, batch=(32, 3)) for step in steps(20)]
            trace = [*trained, *of_terms(by), *wrong]
            (finding,) = judged("logged_averages_are_true", trace)
            assert "divided by the number of samples" in finding.summary
            true = said([scale * total / 4 for total in totals()])
            assert judged("logged_averages_are_true", [*steps(20), *of_terms(by), *true]) == []


def test_sums_of_several_terms_are_divided_by_their_own_batches(judged, steps) -> None:
    """A training divides by the size of its batches, which are others in an evaluation."""
    trained = [replace(step, batch=(16, 3)) for step in steps(20)]
    told = said([total / (4 * 16) for total in totals()], rounding=5e-6)
    (finding,) = judged("logged_averages_are_true", [*trained, *of_terms(1 / 16, "sum"), *told])
    assert finding.summary.endswith("is divided by the batch size of training")
    own = said([total / 104 for total in totals()], rounding=5e-6)
    assert judged("logged_averages_are_true", [*trained, *of_terms(1 / 16, "sum"), *own]) == []
    # Where the training divides by another number, that is what its losses are.
    fixed = said([total / (4 * 50) for total in totals()], rounding=5e-6)
    assert judged("logged_averages_are_true", [*trained, *of_terms(1 / 50, "sum"), *fixed]) == []


@pytest.mark.parametrize(("factor", "found"), [(0.85, True), (1.2, True), (0.95, False)])
def test_a_mean_over_uneven_batches_is_found_where_it_is_far_off(
    factor: float, found: bool, judged, steps
) -> None:
    """What is shown is the mean over samples; below a tenth either may be said."""
    every = [replace(one, weighted=factor * one.loss) for one in evaluations()]
    findings = judged(
        "logged_averages_are_true", [*steps(20), *every, *said([one.loss for one in every])]
    )
    assert [one.summary.endswith("of which some are smaller") for one in findings] == [True] * found
    assert all(one.allowed.endswith("the mean of 104 losses") for one in findings)
    true = said([one.weighted for one in every])
    assert judged("logged_averages_are_true", [*steps(20), *every, *true]) == []
    summed = [replace(one, reduction="sum") for one in every]
    means = said([one.loss for one in every])
    assert judged("logged_averages_are_true", [*steps(20), *summed, *means]) == []


def test_a_mean_over_uneven_batches_of_training_may_be_said(ranks, steps) -> None:
    """Each of its losses is of another model."""
    run = steps(
        20, batch=lambda i: (2 if i % 5 == 4 else 32,), loss=lambda i: 1.0 + 4 * (i % 5 == 4)
    )
    sums = [sum(step.loss for step in run[5 * n : 5 * n + 5]) for n in range(4)]
    means = said([total / 5 for total in sums], "train_loss")
    assert ranks("logged_averages_are_true", [*run, *means]) == []


def test_steps_of_batches_without_a_size(ranks, steps) -> None:
    """A list of graphs is a batch that has none: only the plain mean can be told."""
    run = [replace(step, batch=(0,), clock=10 * n) for n, step in enumerate(steps(20))]
    means = [Logged(name="train_loss", value=1.0, step=n, clock=10 * n - 1) for n in (5, 10, 15)]
    assert ranks("logged_averages_are_true", [*run, *means]) == []
