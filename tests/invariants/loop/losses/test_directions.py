"""The judges of which way a loss pushes what it is made of."""

from dataclasses import replace

import pytest

from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("name", "probe", "label"),
    [
        ("terms_keep_their_sign", "term sign", "entropy"),
        ("terms_keep_their_sign", "term sign", "divergence"),
        ("bootstrapped_targets_are_constants", "live target", "values"),
        ("old_probabilities_are_kept", "ratio", ""),
        ("running_sums_follow_an_order", "running sum", ""),
        ("running_sums_follow_an_order", "early risk", "times"),
    ],
)
@pytest.mark.parametrize(
    ("measured", "reference", "expected"),
    [(4, 4, ["broken"]), (4, 5, []), (2, 2, []), (0, 4, [])],
    ids=["all", "some", "few", "none"],
)
def test_all_looks_must_show_it(name, probe, label, measured, reference, expected, ranks) -> None:
    """One that does not, or too few, leave it open."""
    found = Probe(probe=probe, measured=measured, reference=reference, label=label)
    assert ranks(name, [found]) == expected


def test_the_directions_are_said(judged) -> None:
    """An entropy is made small, a divergence large."""
    probes = [
        Probe(probe="term sign", measured=9.0, reference=9.0, label=label)
        for label in ("entropy", "divergence")
    ]
    small, large = judged("terms_keep_their_sign", probes)
    assert small.summary == "the loss of `train` makes the entropy of its policy small"
    assert (small.measured, small.allowed) == ("added to the loss in 9 of 9 losses", "taken off it")
    assert large.summary == "the loss of `train` makes a divergence from the prior large"
    assert (large.measured, large.allowed) == ("taken off the loss in 9 of 9 losses", "added to it")


def test_what_has_paid_is_said(judged) -> None:
    """It becomes less likely."""
    probe = Probe(probe="term sign", measured=9.0, reference=9.0, label="policy")
    (finding,) = judged("terms_keep_their_sign", [probe])
    assert finding.summary == "the loss of `train` makes less likely what has paid"
    assert (finding.measured, finding.allowed) == (
        "likelier is worse for the loss in 9 of 9 losses",
        "-log_prob * advantage, or -exp(new - old) * advantage",
    )


@pytest.mark.parametrize(
    ("label", "looks", "expected"),
    [("collapsed", 4, ["broken"]), ("", 4, ["note"]), ("collapsed", 2, [])],
)
def test_divergences_that_weigh_too_much(label, looks, expected, ranks) -> None:
    """Are broken where the codes tell nothing any more."""
    probe = Probe(probe="divergence weight", measured=256.0, step=looks, label=label)
    assert ranks("divergences_weigh_one_sample", [probe]) == expected


@pytest.mark.parametrize(("found", "expected"), [(4, ["broken"]), (3, [])])
def test_overlaps_of_scores(found, expected, ranks) -> None:
    """In all losses that have one."""
    probe = Probe(probe="overlap loss", measured=found, reference=4.0)
    assert ranks("overlaps_are_of_probabilities", [probe]) == expected


def test_a_gain_without_a_bound_is_named(judged, ranks) -> None:
    """Two losses that show it are enough: nothing else has this form."""
    label = "of the two gains, the larger one is taken"
    probe = Probe(probe="clipped ratio", measured=2, reference=3, label=label)
    (finding,) = judged("clipping_bounds_the_gain", [probe])
    assert finding.summary == "a loss of `train` clips a ratio, and does not bound the gain"
    assert (finding.at, finding.measured) == (
        f"a choice between two gains: {label}",
        "2 of 3 losses",
    )
    few = Probe(probe="clipped ratio", measured=1, reference=3, label=label)
    assert ranks("clipping_bounds_the_gain", [few]) == []


@pytest.mark.parametrize(
    ("least", "chance", "expected"),
    [(0.797, 2.303, ["broken"]), (0.7, 2.303, []), (0.127, 0.693, []), (2.68, 4.605, ["broken"])],
    ids=["ten classes", "a larger scale", "two classes", "a hundred"],
)
def test_what_a_loss_of_cosines_can_be(least, chance, expected, ranks) -> None:
    """A third of what a model has that knows nothing, and no more."""
    probe = Probe(probe="bounded scores", measured=least, reference=chance, label="1", step=10)
    assert ranks("scores_can_reach_their_targets", [probe]) == expected


@pytest.mark.parametrize(
    ("last", "looks", "expected"),
    [(0.5, 9, ["broken"]), (0.99, 9, []), (0.5, 4, [])],
    ids=["half", "hardly", "few"],
)
def test_weights_of_terms_that_fall(last, looks, expected, ranks) -> None:
    """What falls in all looks, and by more than a little."""
    probe = Probe(probe="free weight", measured=last, reference=1.0, step=looks, label="(2)")
    assert ranks("loss_weights_are_held", [probe]) == expected


@pytest.mark.parametrize(
    ("label", "remedy"), [("0.1 of outputs", "divide the cosines"), ("1", "multiply the cosines")]
)
def test_scores_that_are_cosines(label, remedy, judged) -> None:
    """Of pairs a temperature is to be divided by; of classes a scale is missing."""
    rest = {"measured": 6.04, "reference": 6.24, "step": 512, "label": label}
    (finding,) = judged("scores_can_reach_their_targets", [Probe(probe="bounded scores", **rest)])
    assert finding.at == f"cosines of 512 classes, times {label}"
    assert finding.why.startswith(remedy)


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, ["broken"]), ({"loaded": True}, []), ({"called": False}, []), ({"moved": False}, [])],
    ids=["learns", "had learned before", "an input", "stays"],
)
def test_a_distance_that_is_made_large(change, expected, ranks, steps) -> None:
    """By the one optimizer of a model that begins to learn."""
    weight = replace(Parameter(name="Net.weight", dimensions=2), **change)
    probe = Probe(probe="term sign", measured=9.0, reference=9.0, label="distance")
    assert ranks("terms_keep_their_sign", [*steps(9), weight, probe]) == expected
    other = [replace(step, optimizer="Adam") for step in steps(9)]
    assert ranks("terms_keep_their_sign", [*steps(9), *other, weight, probe]) == []
