"""The judge of likelihoods that are written by hand."""

import pytest

from trainguard.events.probe import Probe


@pytest.mark.parametrize(
    ("ratio", "looks", "expected"),
    [
        (0.5, 3, ["broken"]),
        (2.0, 8, ["broken"]),
        (-1.0, 8, ["broken"]),
        (1.3, 8, ["note"]),
        (1.05, 8, []),
        (0.5, 2, []),
    ],
)
def test_variances_of_another_size(ratio, looks, expected, ranks) -> None:
    """A half at one part alone, and no end at all, are mistakes; another number may be meant."""
    probe = Probe(probe="likelihood", measured=ratio, reference=1.0, step=looks)
    assert ranks("variances_are_those_of_the_errors", [probe]) == expected


def test_what_is_said(judged) -> None:
    """Of one that is too small, and of none."""
    halves, none = (
        judged("variances_are_those_of_the_errors", [Probe(probe="likelihood", measured=r, step=8)])
        for r in (0.5, -1.0)
    )
    assert halves[0].summary == "a likelihood in `train` is largest for another variance"
    assert halves[0].measured == "0.5 times the square of the errors"
    assert none[0].summary == "a likelihood in `train` has no largest value"


@pytest.mark.parametrize(
    ("label", "summary"),
    [
        ("sign", "the loss of `train` rises with the log-determinant of its flow"),
        ("value", "the log-determinant that a flow of `train` returns is wrong"),
    ],
)
def test_log_determinants(label, summary, judged) -> None:
    """In three looks or more."""
    probes = [
        Probe(probe="log determinant", measured=looks, reference=looks, label=label)
        for looks in (2, 3)
    ]
    assert judged("log_determinants_count", probes[:1]) == []
    (finding,) = judged("log_determinants_count", probes[1:])
    assert finding.summary == summary
    assert finding.measured.startswith("3 looks in which")


@pytest.mark.parametrize(("looks", "of", "expected"), [(3, 3, ["broken"]), (3, 4, []), (2, 2, [])])
def test_weights_of_a_mixture(looks, of, expected, ranks) -> None:
    """All looks must show it, three or more."""
    probe = Probe(probe="mixture axis", measured=looks, reference=of, label="-2 and -1")
    assert ranks("mixture_weights_sum_to_one", [probe]) == expected


@pytest.mark.parametrize(("looks", "of", "expected"), [(3, 3, ["broken"]), (3, 4, []), (2, 2, [])])
def test_weights_in_place_of_their_logarithms(looks, of, expected, ranks) -> None:
    """All looks must show it, three or more."""
    probe = Probe(probe="mixture probabilities", measured=looks, reference=of)
    assert ranks("mixture_weights_sum_to_one", [probe]) == expected


@pytest.mark.parametrize(
    ("looks", "of", "expected"), [(5, 5, ["broken"]), (3, 3, ["broken"]), (2, 2, []), (4, 5, [])]
)
def test_weights_over_the_samples(looks, of, expected, ranks) -> None:
    """All of three looks, or more."""
    probe = Probe(probe="gate axis", measured=looks, reference=of, label="(32,5)")
    assert ranks("mixture_weights_sum_to_one", [probe]) == expected
