"""The judges of the loss functions that a run calls."""

from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Term
from trainguard.events.probe import Probe

BALANCED = "components_are_balanced"
TWICE = "logits_are_not_normalised_twice"
PAIRS = "loss_inputs_do_not_broadcast"
LINE = "/home/me/train.py:9"


def term(function: str = "cross_entropy", **more) -> Term:
    """Write a healthy term, called with logits in each of 20 steps."""
    row = {"source": LINE, "calls": 20, "input": (32, 10), "target": (32,)}
    return Term(function=function, **{**row, "producer": "AddmmBackward0", **more})


def test_a_term_that_is_drowned_is_a_note(judged) -> None:
    """The largest of its shares is measured, in the steps that were probed."""
    run = [term("mse_loss", shares=(1.0, 1.0, 1.0)), term("l1_loss", shares=(2e-4, 5e-4, 1e-5))]
    (finding,) = judged(BALANCED, run)
    assert finding.summary == "a term of the loss of `train` is drowned by another"
    assert (finding.at, finding.measured, finding.allowed) == (
        "l1_loss",
        "0.0005 of the largest term's gradient, at most in 3 steps",
        "0.001",
    )
    assert (finding.rank, finding.source) == (Rank.NOTE, LINE)
    assert judged(BALANCED, run, **{f"limit:{BALANCED}": 1e4}) == []


@pytest.mark.parametrize(
    ("shares", "more", "expected"),
    [
        ((1e-4, 1e-4), {}, 1),
        ((1e-4, 1e-2), {}, 0),
        ((1e-4, 1e-3), {}, 0),
        ((1e-4,), {}, 0),
        ((), {}, 0),
        ((0.0, 0.0), {}, 0),
        ((0.0, 1e-4), {}, 1),
        ((nan, 1e-4), {}, 0),
        ((nan, 1e-4, 1e-4), {}, 1),
        ((inf, inf), {}, 0),
        ((1e-4, 1e-4), {"evaluation": True}, 0),
    ],
)
def test_shares(shares: tuple[float, ...], more: dict, expected: int, judged) -> None:
    """A term must be small in every probed step, and there must be two of them."""
    run = [term("mse_loss", shares=(1.0, 1.0)), term("kl_div", shares=shares, **more)]
    assert len(judged(BALANCED, run)) == expected
    assert judged(BALANCED, run[1:]) == []


@pytest.mark.parametrize(
    ("function", "more", "given"),
    [
        ("cross_entropy", {"producer": "SoftmaxBackward0"}, "the output of a softmax"),
        ("cross_entropy", {"producer": "SigmoidBackward0"}, "the output of a sigmoid"),
        ("cross_entropy", {"producer": "DivBackward0", "distributions": 20}, "probabilities"),
        ("cross_entropy", {"producer": "", "distributions": 20}, "probabilities"),
        ("cross_entropy", {"distributions": 20, "input": (32, 2)}, "probabilities"),
        (
            "binary_cross_entropy_with_logits",
            {"producer": "SigmoidBackward0"},
            "the output of a sigmoid",
        ),
        ("nll_loss", {"positive": 20}, "values above zero"),
        ("nll_loss", {"positive": 20, "distributions": 20}, "probabilities"),
        ("kl_div", {"distributions": 20}, "probabilities"),
        ("kl_div", {"producer": "SoftmaxBackward0"}, "the output of a softmax"),
        ("nll_loss", {"producer": "ReluBackward0"}, "the output of a ReLU"),
    ],
)
def test_an_input_that_is_normalised_already(function, more: dict, given: str, judged) -> None:
    """What made it is told, or what its rows are."""
    (finding,) = judged(TWICE, [term(function, **more)])
    assert finding.summary == f"{function} of `train` is given {given}"
    assert finding.at == f"input of shape {more.get('input', (32, 10))}"
    assert finding.measured == f"{given} in 20 of 20 calls"
    assert finding.allowed == (
        "logarithms of probabilities" if function in ("nll_loss", "kl_div") else "logits"
    )
    assert (finding.rank, finding.source, finding.why != "") == (Rank.BROKEN, LINE, True)


@pytest.mark.parametrize(
    ("function", "more"),
    [
        ("cross_entropy", {}),
        ("cross_entropy", {"producer": "LogSoftmaxBackward0"}),
        ("cross_entropy", {"distributions": 19}),
        ("cross_entropy", {"distributions": 20, "input": (32, 1)}),
        ("cross_entropy", {"distributions": 20, "input": (32,)}),
        ("binary_cross_entropy_with_logits", {"distributions": 20, "input": (32, 2)}),
        ("binary_cross_entropy", {"producer": "SigmoidBackward0"}),
        ("kl_div", {"producer": "LogSoftmaxBackward0"}),
        ("mse_loss", {"producer": "SoftmaxBackward0", "distributions": 20}),
        ("nll_loss", {"producer": "LogSoftmaxBackward0"}),
        ("nll_loss", {"positive": 19}),
        ("nll_loss", {"calls": 0, "positive": 0}),
    ],
)
def test_inputs_that_are_as_they_should_be(function: str, more: dict, judged) -> None:
    """Logits, logarithms, losses of probabilities, and what a few calls do not prove."""
    assert judged(TWICE, [term(function, **more)]) == []


def test_a_few_calls_may_be_distributions_by_chance(judged) -> None:
    """Three calls prove it."""
    assert judged(TWICE, [term(calls=2, distributions=2)]) == []
    assert len(judged(TWICE, [term(calls=3, distributions=3)])) == 1


def test_a_table_of_all_pairs(judged) -> None:
    """A column of outputs against a row of targets, in every call."""
    table = term("mse_loss", input=(32, 1), target=(32,), broadcasts=20)
    (finding,) = judged(PAIRS, [table])
    assert finding.summary == "mse_loss of `train` compares all outputs with all targets"
    assert (finding.at, finding.measured, finding.allowed) == (
        "in 20 of 20 calls",
        "input (32, 1), target (32,)",
        "the same shape for both",
    )
    assert (finding.rank, finding.source) == (Rank.BROKEN, LINE)


@pytest.mark.parametrize(
    ("shapes", "more", "expected"),
    [
        (((32,), (32, 1)), {}, 1),
        (((8, 8, 1), (8, 8)), {}, 1),
        (((32, 1), (32,)), {"broadcasts": 19}, 0),
        (((32, 1), (32,)), {"broadcasts": 0, "calls": 0}, 0),
        (((32, 1), (1, 32)), {}, 0),
        (((32, 1, 4), (1, 16, 4)), {}, 0),
        (((32, 4), (4,)), {}, 0),
        (((32, 1), (16,)), {}, 0),
    ],
)
def test_shapes(shapes, more: dict, expected: int, judged) -> None:
    """Tables that are made on purpose have as many dimensions on both sides."""
    row = {"broadcasts": 20, "input": shapes[0], "target": shapes[1], **more}
    assert len(judged(PAIRS, [term("mse_loss", **row)])) == expected


def test_a_table_in_a_loss_by_hand(judged) -> None:
    """The probe has counted what went into the mean."""
    probe = Probe(probe="broadcast", measured=1024, reference=32, source=LINE, label="sub")
    (finding,) = judged(PAIRS, [probe])
    assert finding.summary == "the loss of `train` compares all outputs with all targets"
    assert (finding.at, finding.measured, finding.allowed, finding.rank, finding.source) == (
        "sub",
        "1024 elements in the mean",
        "32 elements, as many as outputs",
        Rank.BROKEN,
        LINE,
    )
    assert judged(PAIRS, [Probe(probe="mix", measured=1024, reference=32)]) == []
    for measured in (32, 16, nan):
        fine = Probe(probe="broadcast", measured=measured, reference=32)
        assert judged(PAIRS, [fine]) == []


def test_weights_of_all_samples(judged) -> None:
    """An advantage of all pairs weighs each log-probability by what is of other samples."""
    probe = Probe(probe="weighed crosswise", measured=1024, reference=32, label="Net")
    (finding,) = judged(PAIRS, [probe])
    assert finding.summary == "the loss of `train` multiplies each sample by the weights of all"
    assert (finding.measured, finding.rank) == ("1024 elements in the mean", Rank.BROKEN)


@pytest.mark.parametrize("name", [BALANCED, TWICE, PAIRS])
def test_edges(name: str, judged, steps) -> None:
    """No run, steps alone, and a term of which nothing is known."""
    for run in ([], steps(1), [Term(function="cross_entropy"), Term(function="nll_loss")]):
        assert judged(name, run) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((32, 7, 5), (32, 5, 7), ["broken"]),
        ((32, 5, 7), (224, 5), ["broken"]),
        ((32, 7, 5), (224, 5), []),
        ((32, 5, 3, 4), (32, 5, 12), []),
        ((32, 35), (32, 7, 5), []),
        ((32, 8, 9), (64, 4, 9), []),
        ((32, 6, 6), (32, 6, 6), []),
        ((0, 7, 5), (0, 5, 7), []),
        ((), (32, 5, 7), []),
    ],
)
def test_views_before_a_loss(before, after, expected, ranks, steps) -> None:
    """A view may split and merge dimensions; one that exchanges them mixes classes."""
    term = Term(function="cross_entropy", calls=20, input=after, viewed=before)
    assert ranks("classes_keep_their_axis", [*steps(20), term]) == expected


@pytest.mark.parametrize(("beyond", "expected"), [(0.4, ["broken"]), (0.1, ["note"]), (0.04, [])])
def test_targets_out_of_reach(beyond, expected, ranks, steps) -> None:
    """Many targets that the last function cannot return are a fault, a few may be noise."""
    term = Term(function="mse_loss", calls=20, producer="ReluBackward0", beyond=beyond)
    assert ranks("loss_targets_are_in_range", [*steps(20), term]) == expected


def test_terms_that_are_reduced_in_two_ways(judged) -> None:
    """A mean beside a sum is a note; a hundredth of either may be rounding."""
    told = {"question": "batch divided", "outcome": "answered", "numbers": (0.6, 0.2)}
    told["label"] = "8 samples"
    (finding,) = judged("terms_are_reduced_alike", [WhatIf(**told, measured=0.25, step=1)])
    assert (finding.rank, finding.at) == (Rank.NOTE, "step 1, 8 samples")
    assert finding.measured == "25 % of it is a sum (0.2), the rest a mean (0.6)"
    for share in (0.0, 0.009, 0.995, 1.0):
        assert judged("terms_are_reduced_alike", [WhatIf(**told, measured=share)]) == []


def test_a_term_without_a_graph_is_a_note(judged) -> None:
    """It is told at the line of its sum, once, where it changes in any of the steps."""
    asked = {"question": "terms without a graph", "outcome": "answered", "reference": 1.0}
    same = WhatIf(**asked, measured=0.0, step=1)
    other = WhatIf(**asked, measured=1.0, step=2, numbers=(0.25, 0.5), smallest=LINE)
    (finding,) = judged("terms_have_a_graph", [same, other, other])
    assert (finding.at, finding.rank, finding.source) == ("step 2", Rank.NOTE, LINE)
    assert finding.measured == "0.25, 0.5 with other parameters, and it moves none"
    assert judged("terms_have_a_graph", [same]) == []


def test_noise_of_another_scale(judged) -> None:
    """It is told at the line of the noise, with what its scale is taken for."""
    asked = {"question": "scale of noise", "outcome": "answered", "reference": 2.0, "step": 1}
    wrong = WhatIf(**asked, measured=1.0, numbers=(2.0,), smallest=LINE)
    (finding,) = judged("noise_has_the_scale_of_its_divergence", [wrong])
    assert (finding.at, finding.rank, finding.source) == ("step 1", Rank.BROKEN, LINE)
    assert str(finding.measured).endswith("takes for a variance")
    assert judged("noise_has_the_scale_of_its_divergence", [WhatIf(**asked, measured=0.0)]) == []


@pytest.mark.parametrize(("added", "expected"), [(1, ["broken"]), (0, ["note"])])
def test_a_target_that_is_compared_with_itself(added: float, expected: list, ranks, steps) -> None:
    """A term of a loss that is nothing is a fault, what is measured so may be a mistake."""
    probe = Probe(probe="itself", measured=8, reference=added, source=LINE)
    assert ranks("terms_have_a_graph", [*steps(20), probe]) == expected
