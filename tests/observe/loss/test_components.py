"""The probes of a loss's components and of the bins of its likelihood."""

import pytest
import torch
from torch.nn import functional

import trainguard as tg
from trainguard.observe.loss.probes import bins, components
from trainguard.observe.loss.search import Key

XY = {"x": tg.real("B", -1, 1), "y": tg.real("B", -1, 1)}
TWO = ("near", "far")


def pulls(made, measured, function, **declared) -> dict[str, float]:
    """Return how strongly each component pulls."""
    declared = {"components": TWO, **XY, **declared}
    found = measured(components, made(function, whole=True, **declared), 64)
    return {key.label: float(m.measured[0]) for key, m in found.items()}


def test_each_component_pulls(made, measured) -> None:
    """The median norm of each gradient is measured, for tuples and for dicts."""
    found = pulls(made, measured, lambda x, y: (x.sum(), 100 * y.sum()))
    assert found == pytest.approx({"near": 2**0.5, "far": 100 * 2**0.5})
    assert found == pulls(made, measured, lambda x, y: {"far": 100 * y.sum(), "near": x.sum()})


def test_the_weight_in_the_total_counts(made, measured) -> None:
    """Where the total is made from the components, each counts by its weight in it."""

    def weighted(x, y):
        near, far = x.sum(), 100 * y.sum()
        return near + 0.01 * far, near, far

    found = pulls(made, measured, weighted, total="loss")
    assert found == pytest.approx({"near": 2**0.5, "far": 2**0.5})


def test_a_total_that_is_made_apart(made, measured) -> None:
    """Where the total does not follow from the components, each counts as it is."""
    apart = lambda x, y: (x.sum() + y.sum(), x.sum(), 7 * y.sum())  # noqa: E731
    found = pulls(made, measured, apart, total="loss")
    assert found == pytest.approx({"near": 2**0.5, "far": 7 * 2**0.5})


def test_a_component_without_a_gradient(made, measured) -> None:
    """A component that is detached, or of which nothing is known, pulls at nothing."""
    assert pulls(made, measured, lambda x, y: (x.sum(), y.detach().sum()))["far"] == 0.0
    assert pulls(made, measured, lambda x, y: (x.sum(), 0 * x.sum()))["far"] == 0.0


def test_points_that_are_not_finite_are_left_out(made, measured) -> None:
    """A nan at some points does not hide what is typical, and one at all points is told as nan."""
    assert pulls(made, measured, lambda x, y: (x.sum(), (y + 0.8).sqrt().sum()))["far"] > 0
    none = pulls(made, measured, lambda x, y: (x.sum(), (y * torch.nan).sum()))
    assert none["far"] != none["far"]


ONE = {"B": 1, "K": 4}
LOGITS = {"logits": tg.real("B K", -9, 9), "target": tg.integer("B", 0, "K-1")}


def probability(made, measured, function, drawn=ONE, **inputs) -> torch.Tensor:
    """Return the sums of probabilities at a few points."""
    evaluator = made(function, drawn, whole=True, likelihood="target", **inputs)
    return measured(bins, evaluator, 8)[Key("likelihood", "target")].measured


def test_a_likelihood_sums_to_one(made, measured) -> None:
    """Cross-entropy is the likelihood of a class."""
    cross_entropy = lambda logits, target: functional.nll_loss(logits.log_softmax(1), target)  # noqa: E731
    sums = probability(made, measured, cross_entropy, **LOGITS)
    torch.testing.assert_close(sums, torch.ones(8, dtype=torch.float64))


@pytest.mark.parametrize(
    "function",
    [
        lambda logits, target: functional.cross_entropy(logits, target, label_smoothing=0.1),
        lambda logits, target: functional.cross_entropy(logits, target) / 0.6931,
        lambda logits, target: functional.binary_cross_entropy_with_logits(
            logits, functional.one_hot(target, 4).double()
        ),
    ],
    ids=["smoothed", "in bits", "of each class"],
)
def test_what_is_no_likelihood(function, made, measured) -> None:
    """A smoothed loss, another base and losses of each class do not sum to one."""
    sums = probability(made, measured, function, **LOGITS)
    assert float((sums - 1).abs().max()) > 0.01


def logistic(mean, target, width: float):
    """Return the discretised logistic likelihood of 256 bins in [-1, 1]."""
    above = torch.where(target > 0.999, 1.0, torch.sigmoid((target + width / 2 - mean) * 20))
    below = torch.where(target < -0.999, 0.0, torch.sigmoid((target - width / 2 - mean) * 20))
    return -(above - below).clamp_min(1e-300).log().sum()


BINS = {"mean": tg.real("B", -1, 1), "target": tg.bins("B", -1, 1, 256)}


@pytest.mark.parametrize(("width", "expected"), [(2 / 255, True), (2 / 256, False)])
def test_bins(width: float, expected: bool, made, measured) -> None:
    """The right bin width sums to one, and one that is off by one in 256 does not."""
    sums = probability(
        made, measured, lambda mean, target: logistic(mean, target, width), {"B": 1}, **BINS
    )
    assert bool(((sums - 1).abs() < 1e-6).all()) is expected


def test_many_bins_of_a_looped_loss(made, measured) -> None:
    """Where a call takes few points, the bins come in several calls, and all of them count."""

    def looped(mean, target):
        assert float(target.detach().abs().max()) <= 1.0
        return logistic(mean, target, 2 / 255)

    sums = probability(made, measured, looped, {"B": 1}, **BINS)
    torch.testing.assert_close(sums, torch.ones(8, dtype=torch.float64))
