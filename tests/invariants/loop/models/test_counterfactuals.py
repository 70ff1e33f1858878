"""The judges of what a step would have done, had something been different."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.counterfactual import WhatIf
from trainguard.events.probe import Probe

LINE = "/home/me/train.py:9"


def asked(question, *measured, outcome="answered", **more) -> list[WhatIf]:
    """Write the answers to a question, at steps 1, 2, ..."""
    return [
        WhatIf(question=question, outcome=outcome, measured=m, step=i + 1, source=LINE, **more)
        for i, m in enumerate(measured)
    ]


def test_inputs_that_do_not_matter(judged, steps) -> None:
    """All answers are the same to the last bit, and a matrix learns nothing."""
    dead = {"reference": 3.0, "numbers": (1.0,), "label": "1 of 1 inputs in the opposite order"}
    (finding,) = judged("inputs_matter", [*steps(9), *asked("inputs edited", 0.0, 0.0, **dead)])
    assert finding.summary == "the inputs of a model of `train` do not affect its loss"
    assert (finding.at, finding.source, finding.rank) == ("steps 1, 2", LINE, Rank.BROKEN)
    for healthy in (
        asked("inputs edited", 0.0, **dead),
        asked("inputs edited", 0.0, 0.0, 1.0, **dead),
        asked("inputs edited", 0.0, 0.0, **{**dead, "numbers": (0.0,)}),
        asked("inputs edited", 0.0, 0.0, **dead, outcome="void"),
    ):
        assert judged("inputs_matter", [*steps(9), *healthy]) == []


@pytest.mark.parametrize(("measured", "found"), [(0.1, 1), (1e-5, 0), (0.0, 0)])
def test_padding_that_matters(judged, measured, found) -> None:
    """More than rounding is a finding."""
    run = asked("padding edited", measured, reference=1e-5, label="7 of 64 tokens")
    findings = judged("padding_does_not_matter", run)
    assert len(findings) == found
    for finding in findings:
        assert finding.summary == "padding changes the loss of `train`"
        assert finding.at == "step 1, 7 of 64 tokens"


@pytest.mark.parametrize(
    ("early", "late", "rank"),
    [
        (0.9, 0.6, Rank.BROKEN),
        (0.9, 0.4, Rank.NOTE),
        (0.9, None, Rank.NOTE),
        (0.05, 0.7, Rank.BROKEN),
        (0.05, 0.05, None),
    ],
    ids=["to the end", "learned", "short", "late alone", "none"],
)
def test_padding_that_is_cut(judged, early, late, rank) -> None:
    """It is certain where a model has had time to learn to pass over it; told once."""
    told = [("padding cut", early, 1), ("padding cut late", late, 101)]
    run = [
        Probe(probe=kind, measured=measured, reference=7.0, step=step, label="Net")
        for kind, measured, step in told
        if measured is not None
    ]
    findings = judged("padding_does_not_matter", run)
    assert [finding.rank for finding in findings] == ([] if rank is None else [rank])
    for finding in findings:
        assert finding.at == f"step {101 if rank is Rank.BROKEN else 1}, Net"


def test_steps_that_harm(judged) -> None:
    """Every step of at least three answers made it worse."""
    row = {"reference": 8.0, "numbers": (1.0, 2.0)}
    (finding,) = judged("steps_lower_the_loss", asked("the same batch again", 8.0, 8.0, 8.0, **row))
    assert finding.summary == "each step of `train` makes the loss of its own batch higher"
    assert finding.measured == "higher after 24 of 24 steps with one batch (1 -> 2)"
    assert finding.why.startswith("perhaps the sign")
    run = asked("the same batch again", 8.0, 8.0, 8.0, enters="rate", **row)
    (finding,) = judged("steps_lower_the_loss", run)
    assert finding.why == "at a hundredth of the rate it goes down: the rate is far too high"
    for healthy in ((8.0, 8.0), (8.0, 8.0, 8.0, 7.0), (0.0,)):
        run = asked("the same batch again", *healthy, **row)
        assert judged("steps_lower_the_loss", run) == []


def test_a_batch_that_is_never_learned(judged) -> None:
    """In every answer, at no rate at all."""
    row = {"reference": 2.0, "label": "one batch, 50 steps"}
    never = asked("one batch learned", 2.1, 2.2, numbers=(0.0,), **row)
    (finding,) = judged("one_batch_can_be_learned", never)
    assert finding.at == "steps 1, 2, one batch, 50 steps"
    assert finding.allowed == "below 1.9: 2 is the loss of the best constant"
    for healthy in (
        never[:1],
        [*never, *asked("one batch learned", 1.0, numbers=(1.0,), **row)],
        asked("one batch learned", 2.1, 2.2, numbers=(100.0,), **row),
    ):
        assert judged("one_batch_can_be_learned", healthy) == []


def test_samples_that_mix(judged) -> None:
    """Nearly all of the others change, in every answer; a partner that is mixed in is one."""
    row = {"reference": 15.0, "label": "sample 0 of 16", "smallest": "with another sample 0, ..."}
    mixed = asked("a sample edited", 15.0, 15.0, numbers=(0.0,), **row)
    (finding,) = judged("samples_do_not_mix", mixed)
    assert finding.summary == "samples of a batch mix in the steps of `train`"
    assert finding.at == "step 1, sample 0 of 16 edited"
    assert finding.measured == "15 of 15 other samples changed"
    assert finding.smallest == "with another sample 0, ..."
    (inside,) = judged(
        "samples_do_not_mix", asked("a sample edited", 15.0, 15.0, numbers=(1.0,), **row)
    )
    assert inside.summary == "samples of a batch mix in a model of `train`"
    (fading,) = judged(
        "samples_do_not_mix", asked("a sample edited", 6.0, 5.0, numbers=(1.0, 1.0), **row)
    )
    assert fading.measured == "6 of 15 other samples changed, ever less from one to the next"
    (weaker,) = judged("samples_do_not_mix", asked("a sample edited", 8.0, 15.0, **row))
    assert weaker.measured == "15 of 15 other samples changed"
    for healthy in ((15.0,), (15.0, 0.0), (15.0, 7.0), (1.0, 1.0), (12.0, 12.0)):
        run = asked("a sample edited", *healthy, numbers=(0.0, 0.0), **row)
        assert judged("samples_do_not_mix", run) == []


def test_labels_of_which_the_order_is_no_matter(judged) -> None:
    """In every answer, and in two at least."""
    row = {"reference": 1.0, "label": "16 labels, each to the next sample", "smallest": "with ..."}
    (finding,) = judged("labels_matter", asked("labels exchanged", 0.0, 0.0, **row))
    assert finding.summary == "`train` ignores which label belongs to which sample"
    assert (finding.at, finding.smallest) == ("steps 1, 2", "with ...")
    for healthy in ((0.0,), (0.0, 1.0)):
        assert judged("labels_matter", asked("labels exchanged", *healthy, **row)) == []


def test_ignored_labels_that_are_learned(judged) -> None:
    """Broken where nothing else is; a note where the constant can be no label."""
    row = {"label": "7 of 48 labels, which a mask leaves out", "smallest": "the loss is 2, not 1"}
    for numbers, ranks in (
        ((0.0, 0.0), [Rank.BROKEN]),
        ((1.0, 1.0), [Rank.NOTE]),
        ((1.0, 0.0), []),
        ((), []),
    ):
        run = asked("ignored labels edited", 1.0, 1.0, numbers=numbers, **row)
        assert [f.rank for f in judged("ignored_labels_do_not_matter", run)] == ranks
    run = asked("ignored labels edited", 0.0, numbers=(1.0, 1.0), **row)
    assert judged("ignored_labels_do_not_matter", run) == []


def test_a_step_in_another_way(judged) -> None:
    """Other gradients without checkpoints; the same step in spite of other noise, twice."""
    (finding,) = judged(
        "checkpoints_keep_gradients", asked("checkpoints bypassed", 2.0, reference=6.0)
    )
    assert finding.measured == "2 of 6 parameters have another gradient without checkpoints"
    assert judged("checkpoints_keep_gradients", asked("checkpoints bypassed", 0.0)) == []
    (finding,) = judged("dropout_matters", asked("other noise", 0.0, 0.0))
    assert finding.at == "steps 1, 2"
    for healthy in ((0.0,), (0.0, 1.0)):
        assert judged("dropout_matters", asked("other noise", *healthy)) == []


@pytest.mark.parametrize(
    ("masked", "changed", "rank"),
    [(1.0, 30.0, Rank.BROKEN), (1.0, 10.0, Rank.NOTE), (0.0, 40.0, Rank.NOTE), (1.0, 1.0, None)],
)
def test_documents_that_mix(judged, masked, changed, rank) -> None:
    """A mask is a promise, and positions are a sign; few places may be those of full experts."""
    run = asked("a document edited", changed, reference=40.0, numbers=(masked,))
    found = judged("documents_do_not_mix", run)
    assert [finding.rank for finding in found] == ([rank] if rank else [])


@pytest.mark.parametrize(("enabled", "rank"), [(1.0, Rank.BROKEN), (0.0, Rank.NOTE)])
def test_a_step_at_another_scale(judged, enabled, rank) -> None:
    """Gradients that follow the scale; where a scaler had to be enabled for that, it is a note."""
    norms = {"reference": 0.05, "numbers": (0.1, 0.4, enabled)}
    (finding,) = judged("scale_of_losses_does_not_matter", asked("losses scaled", 0.75, **norms))
    assert (finding.measured, finding.rank) == ("gradients of norm 0.4 instead of 0.1", rank)
    healthy = asked("losses scaled", 0.04, **norms)
    assert judged("scale_of_losses_does_not_matter", healthy) == []


def test_a_step_with_graphs_that_were_cut(judged) -> None:
    """A dead term is told once; a state that is detached twice, as a note without a layer."""
    (finding,) = judged("penalties_have_a_graph", asked("gradients with their graph", 1.0, 1.0))
    assert (finding.at, finding.measured) == ("step 1", "it moves no parameter")
    for part, rank in (((1.0, 0.0), Rank.NOTE), ((1.0, 1.0), Rank.BROKEN)):
        (finding,) = judged(
            "penalties_have_a_graph", asked("gradients with their graph", 1.0, 1.0, numbers=part)
        )
        assert finding.rank is rank
    states = "states with their graph"
    for numbers, rank in (((1.0,), Rank.BROKEN), ((0.0,), Rank.NOTE)):
        (finding,) = judged("states_are_learned_through", asked(states, 4.0, 4.0, numbers=numbers))
        assert finding.measured == "4 hand-overs of a state in a row, each without its graph"
        assert finding.rank is rank
    for healthy in ((4.0,), (4.0, 0.0)):
        assert judged("states_are_learned_through", asked(states, *healthy)) == []


def test_places_in_the_batch(judged) -> None:
    """Twice, for nearly all samples that moved, where none of them changes another."""
    alone = asked("a sample edited", 0.0, reference=31.0)
    moved = asked("batch in another order", 32.0, 31.0, reference=32.0)
    (finding,) = judged("order_of_samples_does_not_matter", [*alone, *moved])
    assert finding.measured.startswith("32 of 32 samples change in")
    few = asked("a sample edited", 7.0, reference=31.0)  # only asked on where lengths are given
    (finding,) = judged("order_of_samples_does_not_matter", [*few, *moved])
    assert "lengths" in finding.why
    mixing = asked("a sample edited", 30.0, reference=31.0)
    for healthy in ([*mixing, *moved], moved, [*alone, *moved[:1]]):
        assert judged("order_of_samples_does_not_matter", healthy) == []
    few = asked("batch in another order", 32.0, 20.0, reference=32.0)
    assert judged("order_of_samples_does_not_matter", [*alone, *few]) == []
    by_hand = asked("batch in another order", 32.0, 32.0, reference=32.0, numbers=(0.5, 0.7))
    (finding,) = judged("order_of_samples_does_not_matter", by_hand)
    assert (finding.measured, finding.rank) == ("0.7", Rank.NOTE)
    assert judged("order_of_samples_does_not_matter", by_hand[:1]) == []


@pytest.mark.parametrize(
    ("measured", "numbers", "rank"),
    [
        ((0.9, 0.8), (0.01, 0.0, 4.0), Rank.BROKEN),  # the loss is the same
        ((0.2, 0.2), (0.5, 3.0, 4.0), Rank.BROKEN),  # most parameters get nothing
        ((0.2, 0.2), (0.5, 0.0, 4.0), Rank.NOTE),
        ((0.9, 0.05), (0.01, 0.0, 4.0), None),
        ((0.9,), (0.01, 0.0, 4.0), None),
    ],
)
def test_autocast_that_changes_gradients(judged, measured, numbers, rank) -> None:
    """Each time, and it is certain only where the loss or most parameters say so."""
    run = asked("autocast off", *measured, reference=0.1, numbers=numbers)
    found = judged("shortcuts_change_no_step", run)
    assert [finding.rank for finding in found] == ([rank] if rank else [])


def test_fused_steps_that_differ(judged) -> None:
    """One number in ten is enough."""
    for measured, found in ((11.0, 1), (9.0, 0)):
        run = asked("fused off", measured, reference=100.0)
        assert len(judged("shortcuts_change_no_step", run)) == found


@pytest.mark.parametrize(
    ("measured", "numbers", "found"),
    [
        ((9.0,), (2.0, 2.0), 1),  # more than three times as high
        ((5.0, 5.0), (2.0, 2.0), 1),
        ((5.0,), (2.0, 2.0), 0),  # in one step alone
        ((9.0, 1.0), (2.0, 2.0), 0),
        ((9.0,), (2.0, 2.0, 1.0, 1.0, 1.0), 1),
        ((5.0, 5.0), (1e9,), 0),  # of a run that began there
    ],
)
def test_modes_that_are_two_models(judged, steps, measured, numbers, found) -> None:
    """In all answers, far higher than in training mode."""
    run = asked("evaluation mode", *measured, reference=2.0, numbers=numbers, smallest="`2` (Drop)")
    first = steps(9, loss=1e3 if numbers == (1e9,) else 9.0)
    findings = judged("modes_agree", [*first, *run])
    assert len(findings) == found
    for finding in findings:
        assert finding.rank == Rank.NOTE
        assert finding.why is not None
        assert finding.why.startswith("perhaps `2` (Drop): what it does in one mode alone")
