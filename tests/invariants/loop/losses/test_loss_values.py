"""The judges of loss functions by value."""

import pytest

from trainguard.events.loop import Step, Term
from trainguard.events.probe import Probe

RANGE = "loss_targets_are_in_range"
POSSIBLE = "losses_are_possible"
LOGITS = "binary_cross_entropy_with_logits"


def term(function: str = LOGITS, **more) -> Term:
    """Write a term that was called in each of 20 steps."""
    return Term(function=function, **{"calls": 20, "input": (8,), "target": (8,), **more})


@pytest.mark.parametrize(
    ("function", "low", "high", "found"),
    [
        (LOGITS, 0.0, 1.0, False),
        (LOGITS, -1.0, 1.0, True),
        (LOGITS, 0.0, 255.0, True),
        (LOGITS, -1e-4, 1.0, False),
        ("kl_div", -8.0, -0.1, True),
        ("kl_div", 0.0, 0.9, False),
        ("margin_ranking_loss", 0.0, 1.0, True),
        ("margin_ranking_loss", -1.0, 1.0, False),
        ("margin_ranking_loss", 1.0, 1.0, False),
        ("mse_loss", -9.0, 9.0, False),
    ],
)
def test_ranges_of_targets(function: str, low: float, high: float, found: bool, judged) -> None:
    """Targets are held against what a function is defined for."""
    assert bool(judged(RANGE, [term(function, range=(low, high))])) == found
    assert judged(RANGE, [term(function)]) == []


@pytest.mark.parametrize(
    ("function", "more", "expected"),
    [
        (LOGITS, {"negative": 1}, ["broken"]),
        (LOGITS, {"negative": 1, "weighted": True}, []),
        ("gaussian_nll_loss", {"negative": 20}, []),
        ("kl_div", {"negative": 3}, []),
        ("kl_div", {"negative": 20}, ["broken"]),
        ("mse_loss", {"nonfinite": 1}, ["note"]),
        ("mse_loss", {"nonfinite": 5}, ["broken"]),
        ("mse_loss", {"nonfinite": 5, "evaluation": True}, []),
        ("mse_loss", {"nonfinite": 5, "reduction": "none"}, []),
    ],
)
def test_impossible_losses(function: str, more: dict, expected: list[str], ranks) -> None:
    """Values below zero, or of no number, are found where a function cannot return them."""
    assert ranks(POSSIBLE, [term(function, **more)]) == expected


def test_what_the_loss_shows_is_said_once(judged) -> None:
    """Where the run's own loss is not finite, loss_is_finite says so."""
    lost = Step(step=0, loss=float("nan"), losses=(float("nan"),))
    assert judged(POSSIBLE, [lost, term("mse_loss", nonfinite=20)]) == []


def test_a_blank_among_targets(judged) -> None:
    """What ctc_loss keeps for the space between targets is none."""
    (finding,) = judged(RANGE, [term("ctc_loss", blanks=7)])
    assert str(finding.measured) == "7 calls with the blank among their targets"
    assert judged(RANGE, [term("ctc_loss")]) == []


READ = "losses_read_what_they_are_given"


@pytest.mark.parametrize(
    ("producer", "logarithm", "expected"),
    [
        ("SoftplusBackward0", True, ["broken"]),
        ("ExpBackward0", True, ["broken"]),
        ("ReluBackward0", True, ["note"]),
        ("SoftplusBackward0", False, []),
        ("AddmmBackward0", True, []),
        ("LogBackward0", True, []),
    ],
)
def test_rates_and_their_logarithms(producer: str, logarithm: bool, expected, ranks) -> None:
    """What is never negative is a rate; anything else may be a logarithm."""
    rates = term("poisson_nll_loss", producer=producer, logarithm=logarithm)
    assert ranks(READ, [rates]) == expected


@pytest.mark.parametrize(
    ("reach", "frames", "calls", "expected"),
    [
        (0.51, 5, 20, ["broken"]),
        (0.96, 5, 20, []),
        (0.51, 1, 20, []),
        (0.51, 5, 4, []),
    ],
    ids=["half", "whole", "one size", "few calls"],
)
def test_lengths_of_inputs(reach: float, frames: int, calls: int, expected, ranks) -> None:
    """The longest of a batch that is padded to its longest is read to its end."""
    assert ranks(READ, [term("ctc_loss", reach=reach, frames=frames, calls=calls)]) == expected


@pytest.mark.parametrize(
    ("padded", "frames", "expected"), [(8, 3, ["note"]), (7, 3, []), (8, 2, []), (0, 9, [])]
)
def test_padding_that_ctc_loss_reads(padded: int, frames: int, expected: list, ranks) -> None:
    """Often enough, and of inputs of several sizes."""
    told = term("ctc_loss", reach=1.0, frames=frames, calls=40, padded=padded, lengths="sizes")
    assert ranks(READ, [told]) == expected


@pytest.mark.parametrize(
    ("classes", "several", "short", "expected"),
    [(6, 4, 0.0, ["broken"]), (1000, 4, 0.0, ["note"]), (6, 0, 0.3, ["broken"]), (6, 0, 0.0, [])],
)
def test_targets_that_a_loss_is_not_defined_for(classes, several, short, expected, ranks) -> None:
    """Several classes at once, and more labels than steps in time."""
    shape = (32, classes)
    term = Term(function="x", calls=9, input=shape, target=shape, several=several, short=short)
    assert ranks("loss_targets_are_in_range", [term]) == expected


@pytest.mark.parametrize(("total", "expected"), [(1.4, ["broken"]), (0.9, ["note"])])
def test_smoothed_labels_that_are_no_probabilities(total, expected, ranks, judged) -> None:
    """More than one takes part in what is learned; less only makes all of it smaller."""
    probe = Probe(probe="target sum", measured=total, reference=1.0, step=3, label="(8,5)")
    assert ranks("loss_targets_are_in_range", [probe]) == expected
    (finding,) = judged("loss_targets_are_in_range", [probe])
    assert finding.summary == "smoothed labels of `train` do not add up to one"
    assert (finding.measured, finding.allowed) == (f"{total:g} in each row", "1")
