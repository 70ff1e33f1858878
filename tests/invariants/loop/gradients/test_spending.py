"""Gradients that are cleared before anything used them."""

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Rank
from trainguard.events.counterfactual import WhatIf
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace


def test_passes_in_vain_are_found(judged, steps) -> None:
    """Seven of eight passes are cleared in each step, and the line that does it is named."""
    run = steps(20, thrown=7, thrown_source="/home/me/train.py:9")
    (finding,) = judged("gradients_are_spent", run)
    assert finding.measured == "7 of 8 passes backward in vain, in 20 of 20 steps"
    assert finding.source == "/home/me/train.py:9"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"thrown": lambda i: int(i % 3 == 0)}, []),
        ({"thrown": lambda i: int(i < 2)}, []),
        ({"thrown": 1, "norm": 0.0}, []),
        ({"thrown": lambda i: int(i % 3 > 0)}, ["broken"]),
    ],
    ids=["a third", "twice", "another judgement has it", "most"],
)
def test_passes_in_vain_now_and_then(more: dict, expected: list, ranks, steps) -> None:
    """A batch may be left out, but not most of them."""
    assert ranks("gradients_are_spent", steps(20, **more)) == expected


@pytest.mark.parametrize(
    ("thrown", "expected"),
    [
        (lambda i: 2 * (i % 6 == 5), ["note"]),
        (lambda i: 2 * (i in (3, 9, 16)), []),
        (lambda i: 4 * (i % 6 == 5), ["note"]),  # samples are counted, and the last batch is small
        (lambda i: 5 * (i % 6 == 5), []),
    ],
    ids=["ends of epochs", "now and then", "a whole window", "more than a window"],
)
def test_what_is_left_of_an_epoch(thrown, expected: list, ranks, steps) -> None:
    """Passes that are cleared at equal distances, no more than a step is made from, are a note."""
    more = {"losses": (1.0,) * 4, "thrown": thrown}
    assert ranks("gradients_are_spent", steps(24, **more)) == expected


@pytest.mark.parametrize(
    ("left", "expected"),
    [(lambda i: i % 2 == 1, ["note"]), (lambda i: i % 4 == 3 and i != 131, [])],
    ids=["ends of epochs", "not each of them"],
)
def test_what_is_left_of_epochs_in_a_long_run(left, expected: list, ranks, steps) -> None:
    """Of steps that are watched at other distances, those must be due that are in vain."""
    watched = [i for i in range(256) if i < 128 or i % 32 % 3 == 0]
    more = {"step": lambda k: watched[k], "span": lambda k: 1 if k < 128 else 3, "losses": (1,) * 4}
    run = steps(len(watched), thrown=lambda k: 2 * left(watched[k]) * (k > 99), **more)
    assert ranks("gradients_are_spent", run) == expected


@pytest.mark.parametrize(
    ("lost", "used", "expected"), [(8, 0, ["broken"]), (7, 0, []), (30, 1, [])]
)
def test_a_term_in_vain(lost: float, used: float, expected: list, ranks, steps) -> None:
    """A term that reaches one of several optimizers may be left unused at times, not always."""
    where = {"label": "mse_loss Critic", "source": "/home/me/train.py:9"}
    probe = Probe(probe="in vain", measured=lost, reference=used, **where)
    assert ranks("gradients_are_spent", [*steps(20), probe]) == expected


@pytest.mark.parametrize(
    ("leaked", "made", "expected"),
    [(64, 500, ["broken"]), (16, 20, ["broken"]), (15, 20, []), (20, 60, [])],
)
def test_gradients_of_another_loss(leaked: float, made: float, expected: list, ranks) -> None:
    """Most of the first steps have to be made with them."""
    where = {"label": "Adam#2 Adam train.py:9", "source": "/home/me/train.py:12"}
    probe = Probe(probe="leaked", measured=leaked, reference=made, **where)
    assert ranks("gradients_stay_with_their_loss", [probe]) == expected


def test_a_leak_is_told_with_the_optimizers(judged) -> None:
    """A reader learns whose gradients have to be cleared, and before which line."""
    where = {"label": "Adam#2 Adam train.py:9", "source": "/home/me/train.py:12"}
    probe = Probe(probe="leaked", measured=64, reference=500, step=0, **where)
    (finding,) = judged("gradients_stay_with_their_loss", [probe])
    assert finding.source == "/home/me/train.py:12"
    assert "call zero_grad() of Adam#2" in finding.why
    assert finding.measured.startswith("64 of 64 steps")


def unread(measured: float, reference: float = 16.0, label: str = "") -> Probe:
    """Return the steps in which a line's gradients with a graph were in no loss."""
    source = "/home/me/train.py:14"
    return Probe(probe="unread", measured=measured, reference=reference, label=label, source=source)


@pytest.mark.parametrize(
    ("probe", "more", "expected"),
    [
        (unread(16, label="fast[0]"), {}, ["broken"]),
        (unread(16), {}, ["note"]),
        (unread(13), {}, ["note"]),
        (unread(12, label="fast[0]"), {}, []),
        (unread(0), {}, []),
        (unread(2, 2.0, "fast[0]"), {}, []),
        (unread(3, 3.0, "fast[0]"), {}, ["broken"]),
        (unread(13), {"limit:gradients_with_a_graph_are_used": 0.95}, []),
        (Probe(probe="unspent", measured=16, reference=16), {}, []),
    ],
    ids=[
        *("adapted", "a penalty", "nearly all", "in some steps", "in a loss", "two steps"),
        *("three steps", "the subject's own limit", "another probe"),
    ],
)
def test_gradients_with_a_graph(probe, more: dict, expected: list, ranks, steps) -> None:
    """In nearly all steps in vain, three at least; a line that adapts parameters is broken."""
    assert ranks("gradients_with_a_graph_are_used", [*steps(20), probe], **more) == expected


def test_adapted_parameters_are_named_with_what_to_give_instead(judged) -> None:
    """A reader learns which variable no loss was computed with, and where it was made."""
    (finding,) = judged("gradients_with_a_graph_are_used", [unread(16, label="fast[0]")])
    assert finding.source == "/home/me/train.py:14"
    assert finding.at == "`fast[0]`"
    assert finding.measured.endswith("in no loss in 16 of 16 steps")
    assert "instead of `fast[0]`" in finding.why


def test_gradients_that_nobody_asked_for_are_no_pass() -> None:
    """Without a line that builds a graph for gradients there is nothing to judge."""
    evidence = find_invariants("loop.gradients_with_a_graph_are_used")[0].evidence
    missing = "no gradients were computed with a graph"
    assert evidence(Trace("train", (), {"looked": ("random",)})) == missing
    assert evidence(Trace("train", (), {"looked": ("unread",)})) == ""


def test_numbers_that_nothing_reads_are_noted(judged) -> None:
    """The variable and its line are told; where all are read, nothing is."""
    asked = {"question": "terms unread", "outcome": "answered", "reference": 3.0, "step": 1}
    told = WhatIf(**asked, measured=2.0, enters="kl", smallest="/home/me/train.py:14")
    (finding,) = judged("gradients_with_a_graph_are_used", [told])
    assert (finding.at, finding.rank) == ("`kl`", Rank.NOTE)
    assert finding.source == "/home/me/train.py:14"
    assert finding.measured == "2 variables with a graph, and no place that reads"
    assert judged("gradients_with_a_graph_are_used", [WhatIf(**asked, measured=0.0)]) == []


@pytest.mark.parametrize(
    ("times", "replaced", "expected"), [(8, 1, ["broken"]), (8, 0, ["note"]), (2, 1, [])]
)
def test_losses_that_nothing_reads_are_found(times, replaced, expected, ranks) -> None:
    """In three calls or more; what is left over in a variable of its own may be meant."""
    rest = {"label": "loss", "source": "train.py:9"}
    probe = Probe(probe="lost loss", measured=times, reference=replaced, **rest)
    assert ranks("losses_are_learned_from", [probe]) == expected


@pytest.mark.parametrize(
    ("alone", "looks", "expected"), [(9, 10, ["broken"]), (5, 10, []), (2, 2, [])]
)
def test_the_last_of_several_losses_is_found(alone, looks, expected, ranks) -> None:
    """In nearly all passes backward."""
    probe = Probe(probe="last loss", measured=alone, reference=looks, step=40 * alone)
    assert ranks("losses_are_learned_from", [probe]) == expected
