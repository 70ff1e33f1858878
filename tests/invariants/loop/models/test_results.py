"""The judges of what is computed for nothing, and of what comes where it does harm."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe


def test_a_statement_without_an_effect_is_named(judged) -> None:
    """And what to do with its result."""
    rest = {"label": "x.clamp(0, 1)", "source": "train.py:3"}
    probe = Probe(probe="discarded", measured=1.0, reference=1.0, **rest)
    (finding,) = judged("results_are_kept", [probe])
    assert finding.rank is Rank.BROKEN
    assert finding.summary == "`train` computes a result and discards it"
    assert (finding.at, finding.measured) == ("`x.clamp(0, 1)`", "1 statement without an effect")


def test_a_variable_that_nothing_reads_is_noted(ranks) -> None:
    """It may be left over."""
    probe = Probe(probe="discarded", measured=1.0, label="y = x.relu()")
    assert ranks("results_are_kept", [probe]) == ["note"]


@pytest.mark.parametrize(
    ("measured", "reference", "expected"), [(4, 4, ["broken"]), (3, 4, []), (2, 2, [])]
)
def test_dropout_must_strike_all_losses(measured, reference, expected, ranks) -> None:
    """One that it does not, or too few, leave it open."""
    probe = Probe(probe="dropped", measured=measured, reference=reference, label="mse_loss")
    assert ranks("dropout_spares_the_output", [probe]) == expected


@pytest.mark.parametrize(("read", "expected"), [(30, ["broken"]), (50, [])])
def test_fields_must_share_many_rows(read, expected, ranks) -> None:
    """A table most of whose rows are read may be one vocabulary."""
    probe = Probe(probe="fields", measured=read, reference=60.0, step=3)
    assert ranks("fields_have_rows_of_their_own", [probe]) == expected


@pytest.mark.parametrize(
    ("received", "more", "expected"),
    [
        (0, {}, ["broken"]),
        (4, {}, []),
        (0, {"held": False}, []),
        (0, {"trainable": False}, []),
        (0, {"moved": True}, []),
    ],
    ids=["never", "reached", "in no optimizer", "frozen", "moved"],
)
def test_what_nothing_reads_must_be_without_gradients(received, more, expected, ranks) -> None:
    """A layer whose result is dropped may have learned elsewhere, or is not to learn."""
    probe = Probe(probe="unread layer", measured=1.0, label="Net.norm\nh = self.norm(x)")
    norm = Parameter(name="Net.norm.weight", **{"received": received, "moved": False, **more})
    other = Parameter(name="Net.norms.weight", received=9)
    assert ranks("results_are_kept", [norm, other, probe]) == expected


def test_states_in_the_other_order_are_named(judged) -> None:
    """With the statement that hands them back."""
    probe = Probe(probe="swapped states", measured=1.0, label="c, h = self.cell(x, (h, c))")
    (finding,) = judged("states_keep_their_places", [probe])
    assert finding.at == "`c, h = self.cell(x, (h, c))`"
    assert finding.measured == "2 states: (c, h), as the layer returned them"


@pytest.mark.parametrize(("looks", "expected"), [(3, ["broken"]), (2, [])])
def test_a_sum_of_one_tensor_must_be_seen_again(looks, expected, ranks) -> None:
    """One may be of a layer that is tried out."""
    probe = Probe(probe="doubled", measured=float(looks), label="net.first")
    assert ranks("sums_are_of_two", [probe]) == expected
