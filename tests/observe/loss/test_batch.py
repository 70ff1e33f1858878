"""The probes of what a batch may do: mix its samples, and let padding count."""

import pytest
import torch
from torch.nn import functional

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.observe.loss.batching import mixing, padding
from trainguard.observe.loss.search import Key

XT = {"x": tg.real("B D", -2, 2), "t": tg.real("B D", -2, 2, grad=False)}
MIXING = Key("mixing")
THREE = {"B": 3, "D": 2}


def excess(found) -> float:
    """Return by how much two numbers differ at most, in shares of 1 + |reference|."""
    difference = (found.measured - found.reference).abs() / (1 + found.reference.abs())
    return float(difference.nan_to_num(nan=0.0).max())


def mixed(made, measured, function, reduction: str, **inputs) -> float:
    """Return how far a batch of three is from its samples alone."""
    evaluator = made(function, THREE, whole=True, reduction=reduction, **(inputs or XT))
    return excess(measured(mixing, evaluator, 16)[MIXING])


APART = {
    "none": lambda x, t: (x - t).square().mean(1),
    "sum": lambda x, t: (x - t).abs().sum(),
    "mean": lambda x, t: (x - t).square().mean(),
}


@pytest.mark.parametrize("reduction", APART)
def test_samples_that_stay_apart(reduction: str, made, measured) -> None:
    """Each promise is kept by a loss that keeps it, and broken by the other two."""
    for other, function in APART.items():
        if other == reduction:
            assert mixed(made, measured, function, reduction) < 1e-9
        elif {other, reduction} == {"sum", "mean"}:
            assert mixed(made, measured, function, reduction) > 0.1


MIXED = {
    "broadcasting": ("mean", lambda x, t: (x.sum(1, keepdim=True) - t.sum(1)).square().mean()),
    "normalised": ("mean", lambda x, t: ((x - x.mean(0)) - t).square().mean()),
    "the wrong axis": ("none", lambda x, t: (x - t).square().sum(0).sum().expand(3)),
    "swapped": ("none", lambda x, t: (x - t).square().sum(1).flip(0)),
    "a count over the batch": ("sum", lambda x, t: (x - t).square().sum() / len(x)),
    "a softmax over the batch": ("sum", lambda x, t: (x.softmax(0) * t).sum()),
}


@pytest.mark.parametrize("name", MIXED)
def test_samples_that_mix(name: str, made, measured) -> None:
    """Broadcasting, normalising and reducing over the batch are found."""
    reduction, function = MIXED[name]
    assert mixed(made, measured, function, reduction) > 0.05


def test_an_input_without_a_batch_is_shared(made, measured) -> None:
    """What all samples share is handed to each of them as it is."""
    inputs = {"x": XT["x"], "table": tg.real("K D", -1, 1)}
    loss = lambda x, table: functional.cross_entropy(x @ table.T, torch.zeros(len(x)).long())  # noqa: E731
    assert mixed(made, measured, loss, "mean", **inputs) < 1e-9


def test_a_batch_axis_in_the_middle(made, measured) -> None:
    """Samples are split along the axis that is called B."""
    inputs = {"x": tg.real("D B", -1, 1)}
    assert mixed(made, measured, lambda x: x.square().sum(0), "none", **inputs) < 1e-9
    assert mixed(made, measured, lambda x: x.flip(1).sum(0), "none", **inputs) > 0.05


def test_a_random_loss_is_not_judged(made, measured) -> None:
    """A sample alone draws other numbers than in its batch, so nothing can be said."""
    with pytest.raises(Unjudged, match="draws random numbers"):
        mixed(made, measured, lambda x, t: (x * torch.rand_like(x)).sum(), "sum")


def test_nan_is_no_mixing(made, measured) -> None:
    """Losses that are not finite belong to another judge."""
    evaluator = made(lambda x, t: (x * torch.nan).sum(), THREE, whole=True, reduction="sum", **XT)
    found = measured(mixing, evaluator, 4)[MIXING]
    assert float(found.badness.max()) < 0


MASKED = {"x": tg.real("B T D", -2, 2), "t": tg.real("B T D", -2, 2, grad=False),
          "keep": tg.mask("B T")}  # fmt: skip
FOUR = {"B": 2, "T": 4, "D": 2}


def padded(made, measured, function, **inputs) -> tuple[dict[str, float], float]:
    """Return how much an edit of padding in each input matters, and the largest gradient there."""
    evaluator = made(function, FOUR, whole=True, **(inputs or MASKED))
    found = measured(padding, evaluator, 32)
    edits = {key.input: excess(m) for key, m in found.items() if key.quantity == "padding"}
    leaks = [float(m.measured.max()) for k, m in found.items() if k.quantity == "padding_gradient"]
    return edits, max(leaks, default=0.0)


def masked_mean(x, t, keep):
    """Return the mean of the error over what is kept."""
    error = (x - t).square().mean(-1)
    return (error * keep).sum() / keep.sum()


def test_padding_that_does_not_count(made, measured) -> None:
    """A loss that divides by what is kept is changed by no edit of the rest."""
    edits, leak = padded(made, measured, masked_mean)
    assert (edits.keys(), leak) == ({"x", "t"}, 0.0)
    assert max(edits.values()) == 0.0


def test_padding_in_the_mean(made, measured) -> None:
    """A mean over the padded length takes padding's error in, by value and by gradient."""
    edits, leak = padded(made, measured, lambda x, t, keep: (x - t).square().mean())
    assert min(edits.values()) > 0.1
    assert leak > 0.1


def test_padding_of_one_input(made, measured) -> None:
    """The input that leaks is told from the one that does not."""
    loss = lambda x, t, keep: masked_mean(x, t, keep) + 0.1 * t.mean()  # noqa: E731
    edits, leak = padded(made, measured, loss)
    assert edits["x"] == 0.0 < edits["t"]
    assert leak == 0.0


@pytest.mark.parametrize("padding_value", [True, 1.0, 0])
def test_other_marks_of_padding(padding_value: object, made, measured) -> None:
    """A mask may mark what is padding instead, and hold numbers."""
    inputs = {**MASKED, "keep": tg.mask("B T", padding=padding_value)}
    loss = lambda x, t, keep: masked_mean(x, t, keep != padding_value)  # noqa: E731
    assert max(padded(made, measured, loss, **inputs)[0].values()) == 0.0
    wrong = lambda x, t, keep: masked_mean(x, t, keep == padding_value)  # noqa: E731
    assert max(padded(made, measured, wrong, **inputs)[0].values()) > 0.1


def test_a_mask_in_another_order(made, measured) -> None:
    """The dimensions of mask and input are matched by name, not by position."""
    inputs = {"x": tg.real("T D B", -2, 2), "keep": tg.mask("B T")}
    loss = lambda x, keep: (x.square().mean(1) * keep.T).sum()  # noqa: E731
    edits, leak = padded(made, measured, loss, **inputs)
    assert (edits, leak) == ({"x": 0.0}, 0.0)
    edits, _ = padded(made, measured, lambda x, keep: (x * keep[0, 0]).sum(), **inputs)
    assert edits["x"] > 0.1
