"""The judges of what was tried out on copies of live objects."""

from math import nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Logged
from trainguard.events.probe import Probe

LINE = "/home/me/train.py:9"
KINDS = [
    (
        "target_is_not_in_the_input",
        {"probe": "target", "measured": 1.0, "label": "column 3 of input 0"},
        "the target of `train` stands in its input",
        "equal in 100 % of the rows",
        "less than 100 %",
    ),
    (
        "target_is_not_in_the_input",
        {"probe": "future", "measured": 0.25, "reference": 1e-6, "label": "next token"},
        "an earlier output of `train` depends on a later input",
        "changed by 0.25",
        "at most 1e-06",
    ),
    (
        "target_is_not_in_the_input",
        {"probe": "present", "measured": 0.25, "reference": 1e-6, "label": "its own token"},
        "`train` predicts each token from itself",
        "changed by 0.25 with the token that is the target",
        "at most 1e-06",
    ),
    (
        "samples_do_not_mix",
        {"probe": "mix", "measured": 0.25, "reference": 1e-6, "label": "Net"},
        "samples of a batch mix in a model of `train`",
        "changed by 0.25",
        "at most 1e-06",
    ),
    (
        "labels_follow_inputs",
        {"probe": "labels", "measured": 0.9, "reference": 0.1, "label": "input 0"},
        "the labels of `train` do not follow their inputs",
        "another label in 90 % of the repeated inputs",
        "at most 10 %",
    ),
    (
        "evaluation_is_deterministic",
        {"probe": "repeat", "measured": 0.25, "reference": 1e-6, "label": "Net"},
        "an evaluation of `train` gives another output each time",
        "differs by 0.25",
        "at most 1e-06",
    ),
]


@pytest.mark.parametrize(("name", "row", "summary", "measured", "allowed"), KINDS)
def test_what_a_probe_found(name, row, summary, measured, allowed, judged, steps) -> None:
    """Each kind has its own sentence; when and where it was tried is told."""
    (finding,) = judged(name, [*steps(20), Probe(step=3, source=LINE, **row)])
    assert (finding.summary, finding.measured, finding.allowed) == (summary, measured, allowed)
    assert finding.at == f"step 3, {row['label']}"
    assert (finding.rank, finding.source, finding.why != "") == (Rank.BROKEN, LINE, True)


@pytest.mark.parametrize(("name", "row", "summary", "measured", "allowed"), KINDS)
def test_what_a_probe_may_find(name, row, summary, measured, allowed, judged, steps) -> None:
    """As much as the reference, nothing, and what is unknown; other probes are others'."""
    most = 0.99 if row["probe"] == "target" else row["reference"]
    for value in (most, 0.0, nan):
        assert judged(name, [*steps(20), Probe(**{**row, "measured": value})]) == []
    assert judged(name, [*steps(20), Probe(**{**row, "probe": "another"})]) == []
    for run in ([], steps(1)):
        assert judged(name, run) == []


def test_what_may_mix_samples(judged, steps) -> None:
    """No line is blamed that need not be there: what is read of the whole batch is told."""
    for probe, end in (("mix", "batch"), ("mix along time", "batch, the second axis here")):
        row = Probe(step=3, probe=probe, measured=0.25, reference=1e-6)
        (finding,) = judged("samples_do_not_mix", [*steps(20), row])
        assert finding.why == "perhaps a softmax, a maximum, a mean or a view over the " + end


def test_the_share_of_equal_rows_has_a_limit(ranks, steps) -> None:
    """Some columns are nearly the target, and are no mistake."""
    probe = Probe(probe="target", measured=0.99)
    limit = {"limit:target_is_not_in_the_input": 0.95}
    assert ranks("target_is_not_in_the_input", [probe]) == []
    assert ranks("target_is_not_in_the_input", [probe], **limit) == ["broken"]


def test_two_runs_that_differ(judged) -> None:
    """The first step whose loss differs is named, with both losses."""
    probe = Probe(probe="rerun", measured=3, reference=20, label="0.5 against 0.6", source=LINE)
    (finding,) = judged("run_is_reproducible", [probe])
    assert finding.summary == "two runs of `train` from the same seed differ"
    assert (finding.at, finding.measured, finding.allowed) == (
        "step 3, 0.5 against 0.6",
        "the same losses in 3 steps",
        "in 20 steps",
    )
    assert (finding.rank, finding.source) == (Rank.BROKEN, LINE)


@pytest.mark.parametrize("measured", [20, 21, nan])
def test_two_runs_that_agree(measured: float, judged, steps) -> None:
    """Nothing differs in the steps compared, or nothing is known."""
    probe = Probe(probe="rerun", measured=measured, reference=20)
    for run in ([], steps(20), [probe]):
        assert judged("run_is_reproducible", run) == []


def test_the_rerun_is_a_probe_of_its_own() -> None:
    """Running everything again costs as much as the run, so that it is asked for apart."""
    from trainguard.core.catalogue import find_invariants

    (made,) = find_invariants("loop.run_is_reproducible")
    assert (made.probe, made.needs) == ("rerun", frozenset())


def test_one_layer_at_several_places_is_a_note(judged, steps) -> None:
    """Weights may be shared on purpose; what a list makes that is multiplied may not."""
    label = "Net.layers.0 is Net.layers.5"
    (finding,) = judged("layers_are_distinct", [Probe(probe="shared", measured=6, label=label)])
    assert finding.summary == "a model of `train` holds one layer at several places of a list"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        label,
        "6 places",
        "1 place",
        Rank.NOTE,
    )
    made = Probe(probe="shared", measured=6, reference=1, label=label)
    assert [each.rank for each in judged("layers_are_distinct", [made])] == [Rank.BROKEN]
    alone = [Probe(probe="shared", measured=value) for value in (1, nan)]
    for run in ([], steps(1), alone):
        assert judged("layers_are_distinct", run) == []


@pytest.mark.parametrize(
    ("kind", "rank", "summary"),
    [
        ("rerun", Rank.BROKEN, "two runs of `train` from the same seed differ"),
        ("processes", Rank.BROKEN, "differ in another process"),
        ("workers", Rank.NOTE, "the losses of `train` depend on the number of workers"),
    ],
)
def test_a_run_that_parts_is_told_by_what_parted_it(kind, rank, summary, judged) -> None:
    """A number of workers is a choice, a process is none."""
    probe = Probe(probe=kind, measured=2.0, reference=8.0, label="0.5 against 0.25")
    (finding,) = judged("run_is_reproducible", [probe])
    assert finding.rank is rank
    assert summary in finding.summary
    assert finding.measured == "the same losses in 2 steps"


VALIDATED = Logged(name="val_acc", value=0.9, step=20)


def shared(rows: float, among: float = 100) -> Probe:
    """Write how many rows of an evaluation had been trained on."""
    return Probe(probe="overlap", measured=rows, reference=among, step=500, source="a.py:3")


def test_a_validation_with_rows_of_the_training_is_found(judged, steps) -> None:
    """A part of them is enough, where it is no accident."""
    (finding,) = judged("evaluation_is_held_out", [*steps(20), VALIDATED, shared(40)])
    assert (finding.measured, finding.rank) == (
        "40 of 100 samples were trained on before",
        Rank.BROKEN,
    )


def test_a_validation_on_windows_inside_of_the_training_is_found(judged, steps) -> None:
    """Their share does not matter: the recorder tells only of those that all reach inside."""
    probe = Probe(probe="windows", measured=90, reference=100, step=500, source="a.py:3")
    (finding,) = judged("evaluation_is_held_out", [*steps(20), VALIDATED, probe])
    assert "90 of 100 windows end inside of windows" in finding.measured


@pytest.mark.parametrize("rows", [9, 12, 95], ids=["few", "too few to count", "nearly all"])
def test_rows_that_may_be_twice_in_the_data_are_fine(rows: float, ranks, steps) -> None:
    """A few are, and nearly all may be an evaluation of the training."""
    assert ranks("evaluation_is_held_out", [*steps(20), VALIDATED, shared(rows)]) == []


def test_an_evaluation_that_nobody_calls_a_validation_is_fine(ranks, steps) -> None:
    """It may be of anything."""
    assert ranks("evaluation_is_held_out", [*steps(20), shared(40)]) == []


def test_columns_that_are_exchanged(judged) -> None:
    """In all steps but one, and four or more."""
    row = {"probe": "crossed", "label": "columns 0 and 1", "source": "/home/me/train.py:9"}
    name = "columns_go_with_their_targets"
    (finding,) = judged(name, [Probe(**row, measured=6.0, reference=7.0)])
    assert finding.measured == "each goes with the target of the other one in 6 of 7 steps"
    for healthy in ((3.0, 3.0), (5.0, 7.0)):
        measured, reference = healthy
        assert judged(name, [Probe(**row, measured=measured, reference=reference)]) == []


@pytest.mark.parametrize(("measured", "step", "told"), [(5, 9, 1), (4, 9, 0), (5, 2, 0), (5, 0, 0)])
def test_losses_over_what_is_shown(measured: float, step: int, told: int, judged, steps) -> None:
    """All of them, of rows that come again with others of their numbers hidden."""
    row = {"probe": "shown numbers", "reference": 5.0, "source": LINE}
    found = judged(
        "target_is_not_in_the_input", [*steps(9), Probe(**row, measured=measured, step=step)]
    )
    assert len(found) == told
    assert all(one.measured.startswith("5 of 5 losses count the numbers") for one in found)
