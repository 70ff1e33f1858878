"""Weights of classes, against how often the classes come."""

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.events.counterfactual import WhatIf
from trainguard.events.fit import BaselineFit
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace

COUNTS = (40.0, 130.0, 400.0, 70.0)
INVERSE = tuple(640 / (4 * count) for count in COUNTS)


@pytest.mark.parametrize(
    ("weights", "counts", "expected"),
    [
        (INVERSE, COUNTS, []),
        (tuple(sorted(INVERSE)), COUNTS, ["broken"]),
        (tuple(count / 640 for count in COUNTS), COUNTS, ["broken"]),
        (tuple(weight**0.5 for weight in INVERSE), COUNTS, []),
        ((1.0, 1.0, 0.1, 1.0), COUNTS, []),
        ((1.0, 0.0711), (598.0, 42.5), ["broken"]),
        ((1.0, 0.5), (600.0, 300.0), ["note"]),
        ((1.0, 14.07), (598.0, 42.5), []),
        (tuple(sorted(INVERSE)), (40.0, 130.0, 400.0, 7.0), []),
        ((1.0, 2.0, 3.0), (100.0, 100.0, 101.0), []),
    ],
    ids=[
        *("inverse", "sorted", "as often", "root", "background", "turned pos_weight", "round"),
        *("pos_weight", "few samples", "even"),
    ],
)
def test_weights_of_classes(weights, counts, expected, ranks, steps) -> None:
    """Weights that fit in another order alone are broken; whatever else somebody gives is not."""
    fit = BaselineFit(
        function="cross_entropy" if len(weights) > 2 else "binary_cross_entropy_with_logits",
        weights=weights,
        counts=counts,
    )
    assert ranks("class_weights_fit_the_classes", [*steps(20), fit]) == expected


@pytest.mark.parametrize(("power", "found"), [(0.5, 1), (1.0, 1), (-1.0, 0), (-0.5, 0), (0.0, 0)])
def test_weights_of_several_tags(power, found, judged, steps) -> None:
    """How often they come, or its root, is turned round; one over it is not."""
    odds = (0.25, 0.11, 0.05)
    fit = BaselineFit(
        function="binary_cross_entropy_with_logits",
        weights=tuple(each**power for each in odds),
        counts=tuple(2500 * each for each in odds),
    )
    findings = judged("class_weights_fit_the_classes", [*steps(20), fit])
    assert len(findings) == found
    assert all(
        "class 0, whose odds are 5 times those of the rarest" in f.measured for f in findings
    )


def averaged(measured: float, label: str = "", probe: str = "averaged") -> Probe:
    """Return the steps in which 32 weights multiplied one number for the batch."""
    source = "/home/me/train.py:14"
    return Probe(probe=probe, measured=measured, reference=32.0, label=label, source=source)


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        ([averaged(2, "of samples")], ["broken"]),
        ([averaged(2)], ["note"]),
        ([averaged(1, "of samples")], []),
        ([averaged(0)], []),
        ([averaged(2, probe="focal")], ["note"]),
        ([averaged(1, probe="focal")], []),
        ([averaged(20, "of samples"), averaged(20, probe="focal")], ["broken", "note"]),
        ([averaged(20, "of samples", probe="average")], []),
    ],
    ids=[
        *("with the samples", "the same in each step", "one step", "never"),
        *("a focal factor", "one step of it", "both", "another probe"),
    ],
)
def test_weights_of_samples(probes, expected, ranks, steps) -> None:
    """In two steps or more; broken where the weights come with the samples, else a note."""
    assert ranks("sample_weights_weigh_samples", [*steps(20), *probes]) == expected


def test_weights_of_samples_are_told_with_their_line(judged) -> None:
    """A reader learns how many weights met one number, where, and what is missing."""
    (finding,) = judged("sample_weights_weigh_samples", [averaged(20, "of samples")])
    assert finding.source == "/home/me/train.py:14"
    assert finding.measured == "32 weights times one number"
    assert 'reduction="none"' in finding.why


def test_a_run_without_a_loss_is_no_pass() -> None:
    """Weights are looked for in the graphs of losses: without one there is nothing to judge."""
    evidence = find_invariants("loop.sample_weights_weigh_samples")[0].evidence
    missing = "no loss was handed to backward"
    assert evidence(Trace("train", (), {"looked": ("random",)})) == missing
    assert evidence(Trace("train", (), {"looked": ("averaged",)})) == ""


@pytest.mark.parametrize(
    ("passed", "known", "sure", "expected"),
    [
        (12, 12, 12, ["broken"]),
        (12, 12, 4, ["broken"]),
        (12, 12, 3, ["note"]),
        (40, 40, 8, ["note"]),
        (12, 13, 12, []),
        (3, 3, 3, []),
    ],
    ids=["all", "some", "hardly any", "few of many", "one ends", "few"],
)
def test_targets_past_the_ends(passed, known, sure, expected, ranks, steps) -> None:
    """All ends that are known must be passed; where they may be cut by time it is a note."""
    rest = {"measured": float(passed), "reference": float(known), "step": sure, "label": "done"}
    probe = Probe(probe="ends bootstrapped", **rest)
    assert ranks("returns_stop_at_ends", [*steps(20), probe]) == expected


@pytest.mark.parametrize(("changed", "expected"), [(0.0016, []), (0.0, ["broken"])])
def test_what_a_step_told_already_is_not_told_again(changed, expected, ranks, steps) -> None:
    """Where another state after an end changed the loss, terminal_states_end says so."""
    probe = Probe(probe="ends bootstrapped", measured=12.0, reference=12.0, step=12, label="done")
    answer = WhatIf(
        question="terminal states edited", outcome="answered", measured=changed, reference=6e-7
    )
    assert ranks("returns_stop_at_ends", [*steps(20), probe, answer]) == expected


@pytest.mark.parametrize(("mixed", "expected"), [(8, ["broken"]), (4, []), (0, [])])
def test_returns_in_neither_order(mixed, expected, ranks, steps) -> None:
    """More than half of the episodes that are known must have them so."""
    known = Probe(probe="returns reversed", measured=0.0, reference=8.0)
    told = Probe(probe="returns mixed", measured=float(mixed), reference=8.0)
    assert ranks("returns_follow_their_steps", [*steps(20), known, told]) == expected
