"""Metrics that a script says, against those of its evaluations."""

from math import exp, inf

import numpy as np
import pytest

from trainguard.core.finding import Rank
from trainguard.core.names import metric_of, words_of
from trainguard.events.fit import Metrics
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace
from trainguard.invariants.loop.said.logged_metrics import logged_metrics_are_true
from trainguard.observe.loop.metric_values import perplexities, values_of

VALUES = (("auc", "true", 0.8), ("auc", "true", 0.7), ("auc", "batches", 0.75))


def judge(*said, name="val_auc", values=VALUES, rounding=5e-5):
    """Return the findings about what is said after one evaluation each."""
    events = []
    for step, value in enumerate(said):
        events.append(Metrics(step=step, clock=2 * step, values=values))
        events.append(
            Logged(name=name, value=value, step=step, clock=2 * step + 1, rounding=rounding)
        )
    return list(logged_metrics_are_true(Trace("train.py", tuple(events))))


def test_the_mean_of_batches() -> None:
    """It is broken if two evaluations agree on it, in percent too; one alone is a note."""
    (found,) = judge(0.75, 0.75)
    assert found.rank is Rank.BROKEN
    assert found.measured == "0.75 (2 of 2 times)"
    assert judge(75.0, 75.0, rounding=0.005)[0].rank is Rank.BROKEN
    assert judge(0.75)[0].rank is Rank.NOTE


@pytest.mark.parametrize("value", [0.8, 0.7, 0.61, inf])
def test_what_is_true_or_unknown_passes(value: float) -> None:
    """Any convention is true, and what matches nothing is not judged."""
    assert judge(0.75, value) == []


def test_what_makes_no_difference_passes() -> None:
    """A mean of batches that is nearly the truth is not worth a word; two digits are too few."""
    near = (("auc", "true", 0.8), ("auc", "batches", 0.805))
    assert judge(0.805, 0.805, values=near) == []
    assert judge(0.75, 0.75, rounding=0.005) == []


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("val/AUROC", "auc"),
        ("F1-score (macro)", "f1"),
        ("test_r2", "r2"),
        ("eval_ppl", "perplexity"),
        ("held-out RMSE", "rmse"),
        ("val_mean_iou", "iou"),
        ("Dice score", "dice"),
        ("hold_out/r2", "r2"),
        ("precision@10", ""),
        ("recall_at_5", ""),
        ("f1 cats", ""),
        ("auc_f1", ""),
        ("loss", ""),
    ],
)
def test_names_of_metrics(name: str, metric: str) -> None:
    """A name means a metric where nothing else stands beside it."""
    assert metric_of(name) == metric


def test_held_out_is_one_word_by_itself() -> None:
    """However it is written, and not the end of another one."""
    assert words_of("Held-Out loss") == words_of("holdout_loss") == ["holdout", "loss"]
    assert words_of("threshold_out") == ["threshold", "out"]


def ways(values):
    """Return the values of each metric by how they were computed, rounded."""
    told: dict[tuple[str, str], set[float]] = {}
    for name, way, value in values:
        told.setdefault((name, way), set()).add(round(value, 4))
    return told


def test_metrics_of_one_class() -> None:
    """AUC counts pairs, ties as one half; decisions are those above one half."""
    scores, targets = np.array([0.1, 0.6, 0.6, 0.9, 0.3, 0.8]), np.array([0, 0, 1, 1, 1, 0])
    told = ways(values_of([(scores[:4], targets[:4]), (scores[4:], targets[4:])]))
    assert told["auc", "true"] == {round((1.5 + 3 + 1) / 9, 4), round((1 + 2 / 4 + 3 / 5) / 3, 4)}
    assert 0.5 in told["precision", "true"]
    assert round(2 / 3, 4) in told["recall", "true"]
    assert round(4 / 7, 4) in told["f1", "true"]
    assert round((0.8 + 0) / 2, 4) in told["f1", "batches"]


LABELS = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 1]])
LOGITS = np.array([[0.3, -2, 3], [-1, 0.2, 0.4], [2, 0.1, -3], [-2, -1, 0.7]])


def test_logits_against_a_half() -> None:
    """Of probabilities, and of numbers fitted to zeros and ones, one half is the middle."""
    told = ways(values_of([(LOGITS, LABELS)], logits=True))
    assert told["recall", "true"] >= {1.0}
    assert round(3 / 7, 4) in told["recall", "half"]  # of all labels at once
    assert round((1 / 2 + 0 + 2 / 3) / 3, 4) in told["recall", "half"]  # the mean over classes
    for scores, logits in ((LOGITS, False), (1 / (1 + np.exp(-LOGITS)), True)):
        assert not any(
            way == "half" for _, way in ways(values_of([(scores, LABELS)], logits=logits))
        )


def test_overlaps_of_masks() -> None:
    """Of all at once, with the background, by samples, and by batches."""
    told = ways(values_of([(LOGITS[:2], LABELS[:2]), (LOGITS[2:], LABELS[2:])], logits=True))
    shares = [2 / 2, 2 / 2, 2 / 2, 1 / 1]  # above zero all are found, and no other
    assert told["iou", "true"] == {sum(shares) / 4}
    # Above one half: of the rows 1 of 2, 0 of 2, 1 of 2 and 1 of 1.
    by_row, rest = [0.5, 0.0, 0.5, 1.0], 5 / 9  # of the background 5 of 9
    assert told["iou", "half"] == {
        round(value, 4)
        for value in (3 / 7, (3 / 7 + rest) / 2, sum(by_row) / 4, (1 / 4 + 2 / 3) / 2)
    }
    assert round(2 * 3 / (3 + 7), 4) in told["dice", "half"]


def test_empty_masks_count_as_one_or_none() -> None:
    """Each of both is in use; and nothing is said of one number for each sample."""
    scores, targets = np.array([[-1.0, -2.0], [1.0, -1.0]]), np.array([[0, 0], [1, 1]])
    told = ways(values_of([(scores, targets)], logits=True))
    assert told["iou", "true"] >= {0.5, 0.25, 0.75}
    assert ("iou", "true") not in ways(values_of([(scores[:, 0], targets[:, 0])], logits=True))


def test_masks_that_are_all_empty_have_no_overlap() -> None:
    """And cost no warning, which is an error here."""
    scores, targets = np.full((2, 3), -1.0), np.zeros((2, 3))
    told = ways(values_of([(scores, targets), (scores + 0.1, targets)], logits=True))
    assert {value for value in told["iou", "true"] if value == value} == {0.0, 1.0}


def test_digits_are_few_enough_where_many_evaluations_agree() -> None:
    """Three digits of a small number match something by chance, but not five times."""
    values = (("f1", "true", 0.376), ("f1", "half", 0.22))
    said = {"name": "val_f1", "values": values, "rounding": 5e-4}
    assert judge(*[0.22] * 4, **said) == []
    (found,) = judge(*[0.22] * 5, **said)
    assert found.allowed == "0.376, of probabilities above 0.5"


def test_metrics_of_numbers() -> None:
    """R2 and RMSE are of all numbers at once, and of each batch by mistake."""
    targets = np.array([[0.0], [2.0], [4.0], [6.0]])[:, 0]
    scores = targets + np.array([1.0, -1.0, 3.0, -3.0])
    told = ways(values_of([(scores[:2], targets[:2]), (scores[2:], targets[2:])]))
    assert told["rmse", "true"] == {round(5**0.5, 4)}
    assert told["rmse", "batches"] == {2.0}
    assert told["rmse", "squared"] == {5.0}
    assert told["r2", "true"] == {0.0}
    assert told["r2", "batches"] == {-4.0}


def test_perplexities() -> None:
    """The truth is exp of the mean over tokens, or over batches."""
    told = ways(perplexities([(1.0, 10), (3.0, 30)]))
    assert told["perplexity", "true"] == {round(exp(2.5), 4), round(exp(2.0), 4)}
    assert round((exp(1) + exp(3)) / 2, 4) in told["perplexity", "batches"]
    assert ways(perplexities([])) == {}
