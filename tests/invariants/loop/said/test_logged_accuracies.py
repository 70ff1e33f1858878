"""The judge of the accuracies that a script says."""

from dataclasses import replace
from functools import partial

import pytest

from trainguard.core.finding import Rank
from trainguard.events.fit import Score
from trainguard.events.loop import Logged

RIGHT = (40, 55, 70, 90)  # of 100, in each evaluation


def evaluations(**ways: tuple[float, ...]) -> list[Score]:
    """Write the score of an evaluation after every five steps, with more ways of counting."""
    return [
        Score(
            step=5 * n + 5,
            source="train.py:30",
            clock=50 * n + 52,
            evaluation=True,
            classes=4,
            sole=True,
            ways=(
                ("right", right, 100, right / 100),
                *((name, values[n], 100, values[n] / 100) for name, values in ways.items()),
            ),
            commonest=30,
        )
        for n, right in enumerate(RIGHT)
    ]


def said(values, name: str = "val_acc", rounding: float = 5e-5) -> list[Logged]:
    """Write what is said after each evaluation."""
    return [
        Logged(name=name, value=value, step=5 * n + 5, rounding=rounding, clock=50 * n + 58)
        for n, value in enumerate(values)
    ]


def test_a_wrong_divisor_is_named(judged, steps) -> None:
    """The same divisor each time is found whatever it is."""
    wrong = said([right / 400 for right in RIGHT])
    (finding,) = judged("logged_accuracies_are_true", [*steps(20), *evaluations(), *wrong])
    assert finding.summary == (
        "the accuracy that `train` logs is divided by another number than that of its predictions"
    )
    assert finding.measured == "0.225 (4 of 4 times)"
    assert finding.allowed == "0.9, 90 right of 100"
    assert finding.why == "the divisor seems to be 400; there were 100"


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ((0.40, 0.55, 0.70, 0.90), []),
        ((40.0, 55.0, 70.0, 90.0), []),  # in percent
        ((0.37, 0.56, 0.66, 0.92), []),  # another threshold
        ((0.22, 0.41, 0.53, 0.30), [Rank.BROKEN]),  # along another axis
        ((0.40, 0.95, 1.65, 2.55), [Rank.BROKEN]),  # never set back to zero
        ((0.40, 0.475, 0.55, 0.6375), [Rank.NOTE]),  # the mean of all evaluations
        ((0.0, 0.0, 0.0, 0.0), [Rank.BROKEN]),
        ((0.25, 0.26, 0.25, 0.24), [Rank.NOTE]),  # at chance
        ((0.38, 0.5225, 0.665, 0.855), [Rank.NOTE]),  # a divisor of 105
        ((0.20, 0.40, 0.60, 0.80), []),  # best guess of somebody else
    ],
)
def test_values_are_held_against_the_ways_of_counting(judged, values, rank) -> None:
    """What matches nothing is left alone."""
    events = [*evaluations(axis=(22, 41, 53, 30)), *said(values)]
    assert [f.rank for f in judged("logged_accuracies_are_true", events)] == rank


def test_the_last_batch_alone(judged) -> None:
    """It is noted, and that of all batches is right."""
    events = [*evaluations(final=(22, 41, 53, 30)), *said((0.22, 0.41, 0.53, 0.30))]
    (finding,) = judged("logged_accuracies_are_true", events)
    assert finding.rank is Rank.NOTE
    assert finding.summary.endswith("logs is that of the last batch of each evaluation")
    right = [*evaluations(final=(22, 41, 53, 30)), *said((0.40, 0.55, 0.70, 0.90))]
    assert judged("logged_accuracies_are_true", right) == []


def test_a_share_is_no_percentage(judged) -> None:
    """Of many classes, what is near to one in a hundred of a share is not near to chance."""
    events = [*map(partial(replace, classes=60), evaluations()), *said((0.35, 0.58, 0.66, 0.93))]
    assert not judged("logged_accuracies_are_true", events)


@pytest.mark.parametrize("name", ["best_acc", "top5_acc", "balanced accuracy", "acc_class_3"])
def test_other_accuracies_are_left_alone(judged, name) -> None:
    """A name with another word in it is another metric."""
    events = [*evaluations(axis=(22, 41, 53, 30)), *said((0.22, 0.41, 0.53, 0.30), name)]
    assert not judged("logged_accuracies_are_true", events)


@pytest.mark.parametrize(
    ("values", "ranks"), [((20, 36, 48, 63), [Rank.BROKEN]), ((36, 49, 63, 84), [])]
)
def test_what_the_loss_ignores_is_not_counted(judged, values, ranks) -> None:
    """A count of padding is a mistake where it makes a tenth of a difference."""
    events = [*evaluations(all=values), *said(tuple(value / 100 for value in values))]
    assert [f.rank for f in judged("logged_accuracies_are_true", events)] == ranks


@pytest.mark.parametrize(("factor", "found"), [(0.85, True), (1.15, True), (0.95, False)])
def test_a_mean_over_uneven_batches_is_found_where_it_is_far_off(judged, factor, found) -> None:
    """Below a tenth, either may be said."""
    means = [factor * right / 100 for right in RIGHT]
    scores = [
        replace(one, ways=(("right", right, 100, mean),))
        for one, right, mean in zip(evaluations(), RIGHT, means, strict=True)
    ]
    findings = judged("logged_accuracies_are_true", [*scores, *said(means)])
    assert [one.summary.endswith("of which some are smaller") for one in findings] == [True] * found
    true = said([right / 100 for right in RIGHT])
    assert judged("logged_accuracies_are_true", [*scores, *true]) == []


def test_a_mean_over_uneven_batches_of_training_may_be_said(judged) -> None:
    """Each of its batches is of another model."""
    means = [0.8 * right / 100 for right in RIGHT]
    scores = [
        replace(one, evaluation=False, ways=(("right", right, 100, mean),))
        for one, right, mean in zip(evaluations(), RIGHT, means, strict=True)
    ]
    assert judged("logged_accuracies_are_true", [*scores, *said(means, "train_acc")]) == []


@pytest.mark.parametrize(("watched", "grown"), [(20, True), (20, False), (15, True)])
def test_accuracies_of_training_are_said_before_an_evaluation(judged, watched, grown) -> None:
    """Of the batches since the one before, as far as these were watched."""
    trained = [
        Score(
            step=n,
            source="train.py:20",
            clock=10 * n + 5,
            classes=4,
            sole=True,
            ways=(("right", 4 + n // 2, 20, (4 + n // 2) / 20),),
            commonest=6,
        )
        for n in range(20)
    ]
    right = [sum(4 + n // 2 for n in range(5 * epoch, 5 * epoch + 5)) for epoch in range(4)]
    values = [sum(right[: n + 1]) if grown else right[n] for n in range(4)]
    words = [
        Logged(name="train_acc", value=v / 100, step=5 * n + 5, rounding=5e-5, clock=50 * n + 51)
        for n, v in enumerate(values)
    ]
    events = [*trained[:watched], *evaluations(), *words]
    found = [f.rank for f in judged("logged_accuracies_are_true", events)]
    assert found == [Rank.BROKEN] * grown
